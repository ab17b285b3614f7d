// Profiler JSON to columns, streamed.
//
// Blocks of bytes come in; rows go out into growing arrays. The unit of work is one member of the top-level object or one
// event: where the text ends inside it, nothing of it is kept and it is read again once more text has come. So the parser
// itself needs no state to resume from, and how the bytes were cut into blocks cannot be seen in the result.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "scan_json.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace scan {

constexpr int64_t kAbsent = -1;
constexpr size_t kSlice = size_t{1} << 18;      // bytes parsed at a time: they stay in the second-level cache
constexpr size_t kMaxUnit = size_t{1} << 26;    // longest event or header value
constexpr size_t kMaxKey = 47;                  // keys shorter than this are guessed
constexpr size_t kMaxKeys = 4096;               // most keys that are remembered
constexpr char kSeparator = '\xff';             // between the parts of an interned pair: in no UTF-8 text

struct ScanError {
  int64_t offset;
  std::string reason;
  bool limit;  // legal JSON, but beyond what the scanner takes
};

// What a key of an event says.
enum Field : int32_t { skipped = -1, ph, cat, name, pid, tid, ts, dur, id, args, field_count };

// The keys of one kind of object. Profilers write them in nearly the same order each time, so the key that followed last
// time is tried first and usually spares finding the key's end, its hash and its look-up.
class Keys {
 public:
  explicit Keys(uint64_t seed) : names_(seed) { add("", skipped); }

  void add(std::string_view text, int32_t meaning) {
    bool added;
    names_.intern(text, added);
    if (!added) {
      known_[static_cast<size_t>(names_.find(text))].meaning = meaning;
      return;
    }
    Known key;
    key.meaning = meaning;
    bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c != '"' && c != '\\' && c != 0x7f; });
    if (plain && !text.empty() && text.size() < kMaxKey) {  // others are not guessed
      key.length = static_cast<uint32_t>(text.size()) + 1;
      std::memcpy(key.text, text.data(), text.size());
      key.text[text.size()] = '"';
    }
    known_.push_back(key);
  }
  // The meaning of the key at the cursor; `previous` is the key before it (0 at the start) and becomes this one.
  int32_t read(Cursor& in, uint32_t& previous) {
    uint32_t guess = known_[previous].next;
    if (guess && *in.p == '"' && known_[guess].stands_at(in.p + 1)) {
      in.p += known_[guess].length + 1;
      previous = guess;
      return known_[guess].meaning;
    }
    return look_up(in, previous);
  }

 private:
  struct Known {
    int32_t meaning = skipped;
    uint32_t next = 0;
    uint32_t length = 0;          // with the closing quote
    char text[kMaxKey + 1] = {};  // (a multiple of 16) as it is written, with the closing quote

    bool stands_at(const char* s) const {
#if defined(__SSE2__)
      for (uint32_t at = 0; at < length; at += 16) {
        __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s + at)),
                                      _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + at)));
        unsigned wanted = length - at >= 16 ? 0xffffu : (1u << (length - at)) - 1;
        if ((static_cast<unsigned>(_mm_movemask_epi8(same)) & wanted) != wanted) return false;
      }
      return true;
#else
      return !std::memcmp(s, text, length);
#endif
    }
  };
  int32_t look_up(Cursor& in, uint32_t& previous) {
    Token token = in.string(Place::key);
    std::string_view text = token.text();
    if (token.escaped) {
      scratch_.clear();
      unescape(token.begin, token.end, scratch_);
      text = scratch_;
    }
    int32_t found = names_.find(text);
    if (found < 0) {
      if (names_.size() >= kMaxKeys) return previous = 0, skipped;
      add(text, skipped);
      found = names_.find(text);
    }
    auto key = static_cast<uint32_t>(found);
    if (known_[key].length) known_[previous].next = key;
    previous = key;
    return known_[key].meaning;
  }
  Interner names_;
  std::vector<Known> known_;
  std::string scratch_;
};

enum class Kind : int { integer, floating, text };

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

uint64_t process_seed() {
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

class Scanner {
 public:
  // columns: (name, kind) with kind "int", "float" or "string"; keys: (spelling in args, column), where column -1 is the
  // correlation and -2 the external id; id_column takes the `id` of events that are no flows.
  Scanner(const std::vector<std::string>& kinds, const std::vector<std::tuple<std::string, int>>& keys, int id_column, bool repair)
      : repair_(repair), id_column_(id_column), event_keys_(process_seed()), arg_keys_(process_seed()), strings_(process_seed()),
        raw_(process_seed()), lanes_(process_seed()), classes_(process_seed()) {
    for (const std::string& kind : kinds) {
      columns_.push_back(std::make_unique<Column>());
      columns_.back()->kind = kind == "int" ? Kind::integer : kind == "float" ? Kind::floating : Kind::text;
    }
    const char* fields[] = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args"};
    for (int i = 0; i < field_count; ++i) event_keys_.add(fields[i], i);
    // Meaning in args: the column, then correlation and external id behind the columns.
    auto count = static_cast<int32_t>(columns_.size());
    for (const auto& [spelling, column] : keys) {
      if (column < -2 || column >= count) throw nb::value_error("a key names a column that does not exist");
      arg_keys_.add(spelling, column >= 0 ? column : column == -1 ? count : count + 1);
    }
    if (id_column < 0 || id_column >= count) throw nb::value_error("id_column names a column that does not exist");
    slots_.resize(columns_.size() + 2);
    strings_.intern("");
  }

  void feed(const char* data, size_t size) {
    check_open();
    while (size) {
      size_t part = std::min(size, kSlice);
      append(data, part);
      data += part;
      size -= part;
      if (text_size_ >= retry_at_) run();
    }
  }

  // Read what is left; whether the document is whole.
  bool finish() {
    check_open();
    run();
    return state_ == State::end && text_size_ == 0;
  }

  int64_t offset() const { return consumed_ + static_cast<int64_t>(text_size_); }
  int64_t complete_offset() const { return consumed_; }
  int64_t rows() const { return static_cast<int64_t>(row_count_); }
  bool saw_events() const { return saw_events_; }
  bool saw_document() const { return state_ != State::start; }

  // The columns, handed over: the scanner is spent.
  nb::dict take() {
    check_open();
    taken_ = true;
    nb::dict out;
    out["start"] = to_numpy(start_);
    out["duration"] = to_numpy(duration_);
    out["name"] = to_numpy(name_);
    out["lane"] = to_numpy(lane_);
    out["correlation"] = to_numpy(correlation_);
    out["external_id"] = to_numpy(external_);
    out["class"] = to_numpy(class_);
    nb::list columns;
    for (auto& column : columns_) {
      nb::object rows = to_numpy(column->rows);
      nb::object values = column->kind == Kind::floating ? to_numpy(column->floats) : to_numpy(column->integers);
      columns.append(nb::make_tuple(rows, values, column->unreadable, column->overflow));
    }
    out["columns"] = columns;
    out["strings"] = table(strings_);
    out["lanes"] = table(lanes_);
    out["classes"] = table(classes_);
    nb::list header;
    for (const auto& [key, value] : header_)
      header.append(nb::make_tuple(nb::bytes(key.data(), key.size()), nb::bytes(value.data(), value.size())));
    out["header"] = header;
    nb::dict counts;
    counts["ignored"] = counts_.ignored;
    counts["no_start"] = counts_.no_start;
    counts["no_duration"] = counts_.no_duration;
    counts["negative_duration"] = counts_.negative_duration;
    counts["id_overflow"] = counts_.id_overflow;
    counts["id_unreadable"] = counts_.id_unreadable;
    out["counts"] = counts;
    nb::dict repairs;
    repairs["raw control characters"] = repaired_.control_characters;
    repairs["bare quotes"] = repaired_.bare_quotes;
    repairs["lone backslashes"] = repaired_.lone_backslashes;
    repairs["trailing commas"] = repaired_.trailing_commas;
    repairs["values that are no numbers"] = repaired_.not_numbers;
    repairs["bytes that are not UTF-8"] = repaired_.not_utf8;
    out["repairs"] = repairs;
    return out;
  }

 private:
  enum class State { start, first_member, next_member, first_event, next_event, end };

  static nb::object table(Interner& interner) { return nb::make_tuple(to_numpy<uint8_t>(interner.bytes()), to_numpy(interner.offsets())); }

  void check_open() const {
    if (taken_) throw std::runtime_error("the scanner's columns have been taken");
  }

  void append(const char* data, size_t size) {
    text_.reserve(text_size_ + size + kPadding);
    std::memcpy(text_.data() + text_size_, data, size);
    ascii_ = ascii_ && all_ascii(data, size);
    text_size_ += size;
    std::memset(text_.data() + text_size_, 0, kPadding);
  }

  // Read units until the text runs out; keep what is left of it.
  void run() {
    if (!text_size_) return;
    in_.p = text_.data();
    in_.end = text_.data() + text_size_;
    in_.ascii = ascii_;
    unit_ = in_.p;
    for (;;) {
      try {
        while (step()) {
          repaired_.add(in_.repairs);
          in_.new_unit();
          in_.tolerant = false;
          unit_ = in_.p;
        }
        break;
      } catch (const Incomplete&) {
        break;
      } catch (const Malformed& problem) {
        bool again = repair_ && !in_.tolerant && !problem.limit;
        in_.new_unit();
        if (!again) throw ScanError{consumed_ + (problem.at - text_.data()), problem.reason, problem.limit};
        in_.tolerant = true;
        in_.p = unit_;
      }
    }
    in_.new_unit();
    in_.tolerant = false;
    size_t done = static_cast<size_t>(unit_ - text_.data());
    text_size_ -= done;
    consumed_ += static_cast<int64_t>(done);
    if (text_size_ > kMaxUnit) throw ScanError{consumed_, "one event or header value of more than 64 MiB", true};
    std::memmove(text_.data(), unit_, text_size_ + kPadding);
    ascii_ = all_ascii(text_.data(), text_size_);
    retry_at_ = text_size_ + text_size_ / 2;  // a unit longer than a block is not read again for every block
  }

  // Read one unit; false at the end of the document.
  bool step() {
    if (state_ == State::start && consumed_ == 0 && unit_ == text_.data()) skip_byte_order_mark();
    in_.space();
    unit_ = in_.p;  // white space needs no reading again
    switch (state_) {
      case State::start:
        if (*in_.p == '[') {
          state_ = State::first_event;
          bare_ = saw_events_ = true;
        } else if (*in_.p == '{') {
          state_ = State::first_member;
        } else {
          in_.fail(in_.p, "expected { or [");
        }
        ++in_.p;
        return true;
      case State::first_member:
        if (*in_.p == '}') return ++in_.p, state_ = State::end, true;
        member();
        return true;
      case State::next_member:
        if (!in_.another('}', "expected a comma or }")) return state_ = State::end, true;
        member();
        return true;
      case State::first_event:
        if (*in_.p == ']') return ++in_.p, end_events(), true;
        event();
        state_ = State::next_event;
        return true;
      case State::next_event:
        if (!in_.another(']', "expected a comma or ] behind an event")) return end_events(), true;
        event();
        return true;
      case State::end:
        if (in_.p >= in_.end) return false;
        in_.fail(in_.p, "text behind the end of the document");
    }
    return false;
  }

  void skip_byte_order_mark() {
    const char mark[] = "\xEF\xBB\xBF";
    for (int i = 0; i < 3; ++i) {
      if (in_.p + i >= in_.end && i) throw Incomplete{};
      if (in_.p[i] != mark[i]) return;
    }
    in_.p += 3;
  }

  void end_events() { state_ = bare_ ? State::end : State::next_member; }

  void member() {
    Token key = in_.string(Place::key);
    std::string name;
    unescape(key.begin, key.end, name);
    in_.space();
    in_.expect(':', "expected a colon");
    in_.space();
    if (name == "traceEvents") {
      if (*in_.p != '[') in_.fail(in_.p, "traceEvents is not an array");
      ++in_.p;
      if (saw_events_) forget_rows();
      saw_events_ = true;
      state_ = State::first_event;
      return;
    }
    Token value = in_.value(Place::member);
    std::string text;
    Cursor::write(value, text);
    header_size_ += name.size() + text.size();
    if (header_size_ > kMaxUnit) throw Malformed{key.begin, "header values of more than 64 MiB", true};
    header_.emplace_back(std::move(name), std::move(text));
    state_ = State::next_member;
  }

  // A second traceEvents replaces the first, as in Python's json.
  void forget_rows() {
    row_count_ = 0;
    set_row_sizes();
    for (auto& column : columns_) {
      column->rows.clear();
      column->integers.clear();
      column->floats.clear();
      column->unreadable = column->overflow = 0;
    }
    counts_ = Counts{};
  }

  void event() {
    if (*in_.p != '{') {
      in_.skip(Place::element);
      ++counts_.ignored;
      return;
    }
    for (Token& token : fields_) token.type = Type::none;
    clear_args();
    ++in_.p;
    in_.space();
    if (*in_.p == '}') {
      ++in_.p;
      ++counts_.ignored;
      return;
    }
    uint32_t previous = 0;
    do {
      int32_t field = event_keys_.read(in_, previous);
      in_.space();
      in_.expect(':', "expected a colon");
      in_.space();
      if (field == args) {
        clear_args();
        if (*in_.p == '{') arguments();
        else in_.skip(Place::member);
      } else if (field == skipped) {
        in_.skip(Place::member);
      } else {
        fields_[field] = in_.value(Place::member);
      }
    } while (in_.another('}', "expected a comma or }"));
    commit();
  }

  void clear_args() {
    for (int32_t slot : used_) slots_[static_cast<size_t>(slot)].type = Type::none;
    used_.clear();
  }

  void arguments() {
    ++in_.p;
    in_.space();
    if (*in_.p == '}') {
      ++in_.p;
      return;
    }
    uint32_t previous = 0;
    do {
      int32_t slot = arg_keys_.read(in_, previous);
      in_.space();
      in_.expect(':', "expected a colon");
      in_.space();
      if (slot < 0) {
        in_.skip(Place::member);
        continue;
      }
      Token& token = slots_[static_cast<size_t>(slot)];
      if (token.type == Type::none) used_.push_back(slot);
      token = in_.value(Place::member);
    } while (in_.another('}', "expected a comma or }"));
  }

  void set_row_sizes() {
    start_.set_size(row_count_);
    duration_.set_size(row_count_);
    name_.set_size(row_count_);
    lane_.set_size(row_count_);
    correlation_.set_size(row_count_);
    external_.set_size(row_count_);
    class_.set_size(row_count_);
  }

  // The event that was read becomes a row.
  void commit() {
    if (row_count_ == row_capacity_) {
      if (row_count_ >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) throw Malformed{unit_, "more than 2^31 events", true};
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
    std::string_view phase = text_of(fields_[ph], scratch_a_);
    bool flow = phase == "s" || phase == "f" || phase == "t";

    int64_t start = 0, duration = 0;
    if (!nanoseconds(fields_[ts], start)) {
      start = 0;
      counts_.no_start += phase != "M";
    }
    if (!nanoseconds(fields_[dur], duration)) {
      duration = 0;
      counts_.no_duration += phase == "X";
    } else if (duration < 0) {
      duration = 0;
      ++counts_.negative_duration;
    }
    size_t count = columns_.size();
    start_[row_count_] = start;
    duration_[row_count_] = duration;
    class_[row_count_] = class_of(phase, fields_[cat]);
    name_[row_count_] = strings_.intern(text_of(fields_[name], scratch_b_));
    lane_[row_count_] = lane_of(fields_[pid], fields_[tid]);
    correlation_[row_count_] = identity(flow ? fields_[id] : slots_[count]);
    external_[row_count_] = identity(slots_[count + 1]);
    if (!flow && fields_[id].type != Type::none) add(*columns_[static_cast<size_t>(id_column_)], row, fields_[id]);
    for (int32_t slot : used_)
      if (static_cast<size_t>(slot) < count) add(*columns_[static_cast<size_t>(slot)], row, slots_[static_cast<size_t>(slot)]);
    ++row_count_;
    set_row_sizes();
  }

  // The lanes and classes of late rows, found by the few bytes that tell them apart.
  struct Recent {
    uint64_t a = 0, b = 0;
    int32_t id = -1;
  };
  static Recent& recent(std::vector<Recent>& cache, uint64_t a, uint64_t b) { return cache[mix(a ^ 0x9E3779B97F4A7C15u, b + 1) % cache.size()]; }

  int32_t lane_of(const Token& process, const Token& thread) {
    auto plain = [](const Token& t) { return t.type == Type::number && !t.negative && !t.exponent && !t.fraction && t.digits <= 18; };
    if (!plain(process) || !plain(thread)) return pair(lanes_, text_of(process, scratch_a_), text_of(thread, scratch_b_));
    Recent& slot = recent(recent_lanes_, process.mantissa, thread.mantissa);
    if (slot.id < 0 || slot.a != process.mantissa || slot.b != thread.mantissa)
      slot = {process.mantissa, thread.mantissa, pair(lanes_, process.text(), thread.text())};
    return slot.id;
  }

  int32_t class_of(std::string_view phase, const Token& category) {
    size_t size = static_cast<size_t>(category.end - category.begin);
    if (category.type != Type::string || category.escaped || size > 15 || phase.size() != 1)
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
    joined_ += kSeparator;
    joined_ += second;
    return interner.intern(joined_);
  }

  // The text of a value: of a string what it spells, of anything else how it is written; empty for null and absent.
  static std::string_view text_of(const Token& token, std::string& scratch) {
    if (token.type == Type::none || token.type == Type::null) return {};
    if (!token.escaped) return token.text();
    scratch.clear();
    unescape(token.begin, token.end, scratch);
    return scratch;
  }

  // Microseconds as written, to whole nanoseconds (halves to even).
  bool nanoseconds(const Token& token, int64_t& out) {
    if (token.type == Type::number && !token.exponent && token.fraction <= 3 && token.digits - token.fraction <= 15) {
      static const int64_t scale[] = {1000, 100, 10, 1};
      auto value = static_cast<int64_t>(token.mantissa) * scale[token.fraction];
      out = token.negative ? -value : value;
      return true;
    }
    return parse(token, 3, out) <= Parsed::rounded && (out >= 0 || written_negative(token));
  }
  bool written_negative(const Token& token) { return text_of(token, scratch_b_).find('-') == 0; }

  // A number, or a string that holds one.
  Parsed parse(const Token& token, int scale, int64_t& out) {
    if (token.type == Type::number) {
      if (!scale && !token.exponent && !token.fraction && token.digits <= 18) {
        auto value = static_cast<int64_t>(token.mantissa);
        out = token.negative ? -value : value;
        return Parsed::exact;
      }
      return decimal(token.text(), scale, out);
    }
    if (token.type == Type::literal && !scale) return out = *token.begin == 't', Parsed::exact;
    if (token.type != Type::string) return Parsed::not_a_number;
    std::string_view text = text_of(token, scratch_b_);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    constexpr std::string_view stream = "stream ";
    if (text.substr(0, stream.size()) == stream) text.remove_prefix(stream.size());
    if (!scale && text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == 'x') return hexadecimal(text.substr(2), out);
    return decimal(text, scale, out);
  }

  int64_t identity(const Token& token) {
    if (token.type == Type::none || token.type == Type::null) return kAbsent;
    int64_t value = kAbsent;
    Parsed parsed = parse(token, 0, value);
    if (parsed == Parsed::exact) return value;
    ++(parsed == Parsed::overflow ? counts_.id_overflow : counts_.id_unreadable);
    return kAbsent;
  }

  void add(Column& column, int32_t row, const Token& token) {
    if (token.type == Type::null) return;
    int64_t integer = 0;
    double real = 0;
    switch (column.kind) {
      case Kind::text:
        column.integers.push(token.type == Type::nested ? nested_text(token) : strings_.intern(text_of(token, scratch_b_)));
        break;
      case Kind::integer: {
        Parsed parsed = parse(token, 0, integer);
        if (parsed != Parsed::exact) {
          ++(parsed == Parsed::overflow ? column.overflow : column.unreadable);
          return;
        }
        column.integers.push(integer);
        break;
      }
      case Kind::floating:
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
    if (token.type == Type::number) return floating(token.text(), out);
    if (token.type != Type::string) return false;
    std::string_view text = text_of(token, scratch_b_);
    int64_t ignored;
    if (decimal(text, 0, ignored) == Parsed::not_a_number) return false;
    if (text.front() == '+') text.remove_prefix(1);
    return floating(text, out);
  }

  // Arrays repeat from row to row: each distinct text is made compact once.
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

  bool repair_;
  int id_column_;
  State state_ = State::start;
  bool taken_ = false, bare_ = false, saw_events_ = false, ascii_ = true;
  Buffer<char> text_;      // what is not read yet, and its padding
  size_t text_size_ = 0, retry_at_ = 0;
  int64_t consumed_ = 0;   // bytes before text_
  const char* unit_ = nullptr;
  Cursor in_;
  Keys event_keys_, arg_keys_;
  Token fields_[field_count];
  std::vector<Token> slots_;   // argument values of the event being read
  std::vector<int32_t> used_;  // those that are present
  Interner strings_, raw_, lanes_, classes_;
  Buffer<int32_t> raw_strings_;
  std::vector<Recent> recent_lanes_{64}, recent_classes_{64};
  std::string scratch_a_, scratch_b_, joined_;
  size_t row_count_ = 0, row_capacity_ = 0;
  Buffer<int64_t> start_, duration_, correlation_, external_;
  Buffer<int32_t> name_, lane_, class_;
  std::vector<std::unique_ptr<Column>> columns_;
  std::vector<std::pair<std::string, std::string>> header_;
  size_t header_size_ = 0;
  Counts counts_;
  Repairs repaired_;
};

}  // namespace scan

NB_MODULE(_scan, m) {
  using scan::Scanner;
  m.doc() = "Profiler JSON to columns, streamed.";
  static PyObject* error = PyErr_NewException("lumos._scan.ScanError", PyExc_ValueError, nullptr);
  m.attr("ScanError") = nb::borrow(error);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const scan::ScanError& problem) {
      nb::object args = nb::make_tuple(problem.offset, problem.reason, problem.limit);
      PyErr_SetObject(error, args.ptr());
    }
  });
  nb::class_<Scanner>(m, "Scanner")
      .def(nb::init<const std::vector<std::string>&, const std::vector<std::tuple<std::string, int>>&, int, bool>(), "kinds"_a, "keys"_a,
           "id_column"_a, "repair"_a = false)
      .def(
          "feed",
          [](Scanner& self, nb::handle block) {
            Py_buffer view;
            if (PyObject_GetBuffer(block.ptr(), &view, PyBUF_SIMPLE)) throw nb::python_error();
            struct Release {
              Py_buffer* view;
              ~Release() { PyBuffer_Release(view); }
            } release{&view};
            nb::gil_scoped_release without_gil;
            self.feed(static_cast<const char*>(view.buf), static_cast<size_t>(view.len));
          },
          "block"_a)
      .def("finish", &Scanner::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("take", &Scanner::take)
      .def_prop_ro("offset", &Scanner::offset)
      .def_prop_ro("complete_offset", &Scanner::complete_offset)
      .def_prop_ro("rows", &Scanner::rows)
      .def_prop_ro("saw_document", &Scanner::saw_document)
      .def_prop_ro("saw_events", &Scanner::saw_events);
}
