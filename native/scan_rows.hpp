// Events as rows of columns, with numbers as integers and texts interned.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "scan_json.hpp"

namespace scan {

namespace nb = nanobind;

constexpr int64_t ABSENT = -1;
constexpr char SEPARATOR = '\xff';  // between the parts of an interned pair: in no UTF-8 text

// What a key of an event means, except for the keys of its args.
enum Field : int32_t { PH, CAT, NAME, PID, TID, TS, DUR, ID, FIELDS };

// One event as it was read. Arguments: one slot per column, then correlation and external id; `used` lists those present.
struct Event {
    Token fields[FIELDS];
    std::vector<Token> slots;
    std::vector<int32_t> used;

    void clear() {
        for (Token& token : fields) token.type = Type::NONE;
        clear_arguments();
    }
    void clear_arguments() {
        for (int32_t slot : used) slots[static_cast<size_t>(slot)].type = Type::NONE;
        used.clear();
    }
};

enum class Kind : int { INTEGER, FLOATING, TEXT };

// One sparse argument.
struct Column {
    Kind kind;
    Buffer<int32_t> rows;
    Buffer<int64_t> integers;
    Buffer<double> floats;
    int64_t unreadable = 0, overflow = 0;
};

struct Counts {
    int64_t ignored = 0;            // elements of traceEvents that are no events
    int64_t no_start = 0;           // rows other than metadata without a readable ts
    int64_t no_duration = 0;        // X rows without a readable dur
    int64_t negative_duration = 0;  // rows with dur < 0
    int64_t id_overflow = 0;        // correlation, external or flow ids beyond 64 bits
    int64_t id_unreadable = 0;      // … that are no numbers
};

inline uint64_t process_seed() {
    static const uint64_t seed = (static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}();
    return seed;
}

// The array as NumPy's, without a copy: NumPy frees it.
template <class Out, class T>
nb::object to_numpy(Buffer<T>& buffer) {
    static_assert(sizeof(Out) == sizeof(T));
    size_t size = buffer.size();
    T* data = buffer.release();
    nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    return nb::cast(nb::ndarray<nb::numpy, Out, nb::ndim<1>>(data, {size}, owner));
}
template <class T>
nb::object to_numpy(Buffer<T>& buffer) {
    return to_numpy<T, T>(buffer);
}

// One sparse argument, for Python: rows and their values, and how many values were left out.
struct SparseColumn {
    nb::object rows, values;
    int64_t unreadable, overflow;
};

// Distinct texts, for Python: text i is the bytes from offsets[i] to offsets[i + 1].
struct Texts {
    nb::object text, offsets;
};

// All that was read, for Python.
struct Scanned {
    nb::object start, duration, name, lane, correlation, external_id, event_class;  // by row
    nb::list columns;                                                               // of SparseColumn
    Texts strings, lanes, classes;
    nb::dict counts, repairs;
    nb::list header;  // (key, value) as JSON
};

inline Kind kind_named(std::string_view name) {
    if (name == "int") return Kind::INTEGER;
    if (name == "float") return Kind::FLOATING;
    if (name == "string") return Kind::TEXT;
    throw nb::value_error("a column is of no kind that is known; valid: int, float, string");
}

class Rows {
  public:
    // kinds: "int", "float" or "string", by column; id_column: the column for the `id` of events that are not flows.
    Rows(const std::vector<std::string>& kinds, int id_column)
        : id_column_(id_column), strings_(process_seed()), raw_(process_seed()), lanes_(process_seed()), classes_(process_seed()) {
        for (const std::string& kind : kinds) {
            columns_.push_back(std::make_unique<Column>());
            columns_.back()->kind = kind_named(kind);
        }
        if (id_column < 0 || id_column >= column_count()) throw nb::value_error("id_column names a column that does not exist");
        strings_.intern("");
    }

    size_t size() const { return row_count_; }
    void ignore() { ++counts_.ignored; }  // an element of traceEvents that is no event
    int32_t column_count() const { return static_cast<int32_t>(columns_.size()); }

    void clear() {
        row_count_ = 0;
        set_sizes();
        for (auto& column : columns_) {
            column->rows.clear();
            column->integers.clear();
            column->floats.clear();
            column->unreadable = column->overflow = 0;
        }
        counts_ = Counts{};
    }

    // Append the event as a row. Returns false, without a row, where there are too many.
    bool add(const Event& event) {
        if (row_count_ == row_capacity_) {
            if (row_count_ >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) return false;
            row_capacity_ = row_capacity_ + row_capacity_ / 2 + 4096;
            start_.reserve(row_capacity_);
            duration_.reserve(row_capacity_);
            name_.reserve(row_capacity_);
            lane_.reserve(row_capacity_);
            correlation_.reserve(row_capacity_);
            external_.reserve(row_capacity_);
            class_.reserve(row_capacity_);
        }
        auto row = static_cast<int32_t>(row_count_);
        std::string_view phase = text_of(event.fields[PH], scratch_a_);
        bool flow = phase == "s" || phase == "f" || phase == "t";

        int64_t start = 0, duration = 0;
        if (!nanoseconds(event.fields[TS], start)) {
            start = 0;
            counts_.no_start += phase != "M";
        }
        if (!nanoseconds(event.fields[DUR], duration)) {
            duration = 0;
            counts_.no_duration += phase == "X";
        } else if (duration < 0) {
            duration = 0;
            ++counts_.negative_duration;
        }
        size_t count = columns_.size();
        start_[row_count_] = start;
        duration_[row_count_] = duration;
        class_[row_count_] = class_of(phase, event.fields[CAT]);
        name_[row_count_] = strings_.intern(text_of(event.fields[NAME], scratch_b_));
        lane_[row_count_] = lane_of(event.fields[PID], event.fields[TID]);
        correlation_[row_count_] = identity(flow ? event.fields[ID] : event.slots[count]);
        external_[row_count_] = identity(event.slots[count + 1]);
        if (!flow && event.fields[ID].type != Type::NONE) add_value(*columns_[static_cast<size_t>(id_column_)], row, event.fields[ID]);
        for (int32_t slot : event.used)
            if (static_cast<size_t>(slot) < count)
                add_value(*columns_[static_cast<size_t>(slot)], row, event.slots[static_cast<size_t>(slot)]);
        ++row_count_;
        set_sizes();
        return true;
    }

    // The columns, which the caller takes over; nothing remains here.
    Scanned take() {
        Scanned out;
        out.start = to_numpy(start_);
        out.duration = to_numpy(duration_);
        out.name = to_numpy(name_);
        out.lane = to_numpy(lane_);
        out.correlation = to_numpy(correlation_);
        out.external_id = to_numpy(external_);
        out.event_class = to_numpy(class_);
        for (auto& column : columns_) {
            nb::object rows = to_numpy(column->rows);
            nb::object values = column->kind == Kind::FLOATING ? to_numpy(column->floats) : to_numpy(column->integers);
            out.columns.append(nb::cast(SparseColumn{rows, values, column->unreadable, column->overflow}));
        }
        out.strings = texts(strings_);
        out.lanes = texts(lanes_);
        out.classes = texts(classes_);
        out.counts["ignored"] = counts_.ignored;
        out.counts["no_start"] = counts_.no_start;
        out.counts["no_duration"] = counts_.no_duration;
        out.counts["negative_duration"] = counts_.negative_duration;
        out.counts["id_overflow"] = counts_.id_overflow;
        out.counts["id_unreadable"] = counts_.id_unreadable;
        return out;
    }

  private:
    static Texts texts(Interner& interner) { return {to_numpy<uint8_t>(interner.bytes()), to_numpy(interner.offsets())}; }

    void set_sizes() {
        start_.set_size(row_count_);
        duration_.set_size(row_count_);
        name_.set_size(row_count_);
        lane_.set_size(row_count_);
        correlation_.set_size(row_count_);
        external_.set_size(row_count_);
        class_.set_size(row_count_);
    }

    // The lanes and classes of the latest rows, looked up by the few bytes in which they differ.
    struct Recent {
        uint64_t a = 0, b = 0;
        int32_t id = -1;
    };
    static Recent& recent(std::vector<Recent>& cache, uint64_t a, uint64_t b) {
        return cache[mix(a ^ 0x9E3779B97F4A7C15u, b + 1) % cache.size()];
    }

    int32_t lane_of(const Token& process, const Token& thread) {
        auto plain = [](const Token& t) { return t.type == Type::NUMBER && !t.negative && !t.exponent && !t.fraction && t.digits <= 18; };
        if (!plain(process) || !plain(thread)) return pair(lanes_, text_of(process, scratch_a_), text_of(thread, scratch_b_));
        Recent& slot = recent(recent_lanes_, process.mantissa, thread.mantissa);
        if (slot.id < 0 || slot.a != process.mantissa || slot.b != thread.mantissa)
            slot = {process.mantissa, thread.mantissa, pair(lanes_, process.text(), thread.text())};
        return slot.id;
    }

    int32_t class_of(std::string_view phase, const Token& category) {
        size_t size = static_cast<size_t>(category.end - category.begin);
        if (category.type != Type::STRING || category.escaped || size > 15 || phase.size() != 1)
            return pair(classes_, phase, text_of(category, scratch_b_));
        uint64_t words[2] = {0, 0};
        std::memcpy(words, category.begin, size);
        words[1] |= static_cast<uint64_t>(static_cast<uint8_t>(phase[0])) << 56;
        Recent& slot = recent(recent_classes_, words[0], words[1]);
        if (slot.id < 0 || slot.a != words[0] || slot.b != words[1]) slot = {words[0], words[1], pair(classes_, phase, category.text())};
        return slot.id;
    }

    int32_t pair(Interner& interner, std::string_view first, std::string_view second) {
        joined_.assign(first);
        joined_ += SEPARATOR;
        joined_ += second;
        return interner.intern(joined_);
    }

    // The text of a value: for a string its value, for anything else its JSON text; empty for null and absent.
    static std::string_view text_of(const Token& token, std::string& scratch) {
        if (token.type == Type::NONE || token.type == Type::NULL_VALUE) return {};
        if (!token.escaped) return token.text();
        scratch.clear();
        unescape(token.begin, token.end, scratch);
        return scratch;
    }

    // Microseconds as written, in whole nanoseconds (rounded half to even).
    bool nanoseconds(const Token& token, int64_t& out) {
        if (token.type == Type::NUMBER && !token.exponent && token.fraction <= 3 && token.digits - token.fraction <= 15) {
            static const int64_t scale[] = {1000, 100, 10, 1};
            auto value = static_cast<int64_t>(token.mantissa) * scale[token.fraction];
            out = token.negative ? -value : value;
            return true;
        }
        return parse(token, 3, out) <= Parsed::ROUNDED && (out >= 0 || written_negative(token));
    }
    bool written_negative(const Token& token) { return text_of(token, scratch_b_).find('-') == 0; }

    // A number, or a string that contains one.
    Parsed parse(const Token& token, int scale, int64_t& out) {
        if (token.type == Type::NUMBER) {
            if (!scale && !token.exponent && !token.fraction && token.digits <= 18) {
                auto value = static_cast<int64_t>(token.mantissa);
                out = token.negative ? -value : value;
                return Parsed::EXACT;
            }
            return decimal(token.text(), scale, out);
        }
        if (token.type == Type::LITERAL && !scale) return out = *token.begin == 't', Parsed::EXACT;
        if (token.type != Type::STRING) return Parsed::NOT_A_NUMBER;
        std::string_view text = text_of(token, scratch_b_);
        while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
        while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
        constexpr std::string_view stream = "stream ";
        if (text.substr(0, stream.size()) == stream) text.remove_prefix(stream.size());
        if (!scale && text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == 'x') return hexadecimal(text.substr(2), out);
        return decimal(text, scale, out);
    }

    int64_t identity(const Token& token) {
        if (token.type == Type::NONE || token.type == Type::NULL_VALUE) return ABSENT;
        int64_t value = ABSENT;
        Parsed parsed = parse(token, 0, value);
        if (parsed == Parsed::EXACT) return value;
        ++(parsed == Parsed::TOO_LARGE ? counts_.id_overflow : counts_.id_unreadable);
        return ABSENT;
    }

    void add_value(Column& column, int32_t row, const Token& token) {
        if (token.type == Type::NULL_VALUE) return;
        int64_t integer = 0;
        double real = 0;
        switch (column.kind) {
            case Kind::TEXT:
                column.integers.push(token.type == Type::NESTED ? nested_text(token) : strings_.intern(text_of(token, scratch_b_)));
                break;
            case Kind::INTEGER: {
                Parsed parsed = parse(token, 0, integer);
                if (parsed != Parsed::EXACT) {
                    ++(parsed == Parsed::TOO_LARGE ? column.overflow : column.unreadable);
                    return;
                }
                column.integers.push(integer);
                break;
            }
            case Kind::FLOATING:
                if (!real_number(token, real)) {
                    ++column.unreadable;
                    return;
                }
                column.floats.push(real);
                break;
        }
        column.rows.push(row);
    }

    bool real_number(const Token& token, double& out) {
        if (token.type == Type::NUMBER) return floating(token.text(), out);
        if (token.type != Type::STRING) return false;
        std::string_view text = text_of(token, scratch_b_);
        int64_t ignored;
        if (decimal(text, 0, ignored) == Parsed::NOT_A_NUMBER) return false;
        if (text.front() == '+') text.remove_prefix(1);
        return floating(text, out);
    }

    // Arrays repeat from row to row, so each distinct text is made compact only once.
    int32_t nested_text(const Token& token) {
        bool added;
        int32_t raw = raw_.intern(token.text(), added);
        if (added) {
            scratch_b_.clear();
            compact(token.text(), scratch_b_);
            raw_strings_.push(strings_.intern(scratch_b_));
        }
        return raw_strings_[static_cast<size_t>(raw)];
    }

    int id_column_;
    Interner strings_, raw_, lanes_, classes_;
    Buffer<int32_t> raw_strings_;
    std::vector<Recent> recent_lanes_{64}, recent_classes_{64};
    std::string scratch_a_, scratch_b_, joined_;
    size_t row_count_ = 0, row_capacity_ = 0;
    Buffer<int64_t> start_, duration_, correlation_, external_;
    Buffer<int32_t> name_, lane_, class_;
    std::vector<std::unique_ptr<Column>> columns_;
    Counts counts_;
};

}  // namespace scan
