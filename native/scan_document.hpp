// The scanner: turns a document's text, given in blocks, into rows.
//
// Blocks of bytes come in; rows go out into growing arrays. The unit of work is one member of the top-level object or one
// event: where the text ends inside a unit, the unit is read again from its start once there is more text. So the parser needs
// no state to resume from, and the result does not depend on how the bytes were cut into blocks.
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "scan_json.hpp"
#include "scan_keys.hpp"
#include "scan_rows.hpp"

namespace scan {

constexpr size_t SLICE = size_t{1} << 18;          // bytes parsed at a time: they stay in the second-level cache
constexpr size_t MAX_UNIT = size_t{1} << 26;       // longest event or header value
constexpr int CORRELATION = -1, EXTERNAL_ID = -2;  // what a key of args may set instead of a column
constexpr int32_t ARGS = FIELDS;                   // the meaning of an event's key "args"

struct ScanError {
    int64_t offset;
    std::string reason;
    bool limit;  // legal JSON, but beyond a limit of the scanner
};

class Scanner {
  public:
    // kinds: "int", "float" or "string", by column; keys: (spelling in args, column, or CORRELATION or EXTERNAL_ID); id_column: the
    // column for the `id` of events that are not flows.
    Scanner(const std::vector<std::string>& kinds, const std::vector<std::tuple<std::string, int>>& keys, int id_column, bool repair)
        : repair_(repair), event_keys_(process_seed()), arg_keys_(process_seed()), rows_(kinds, id_column) {
        const char* fields[] = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "id"};
        for (int i = 0; i < FIELDS; ++i) event_keys_.add(fields[i], i);
        event_keys_.add("args", ARGS);
        // The meaning of a key in args: its column; the numbers after the last column mean the correlation and the external id.
        int32_t count = rows_.column_count();
        for (const auto& [spelling, column] : keys) {
            if (column < EXTERNAL_ID || column >= count) throw nb::value_error("a key names a column that does not exist");
            arg_keys_.add(spelling, column >= 0 ? column : column == CORRELATION ? count : count + 1);
        }
        event_.slots.resize(static_cast<size_t>(count) + 2);
    }

    void feed(const char* data, size_t size) {
        check_open();
        while (size) {
            size_t part = std::min(size, SLICE);
            append(data, part);
            data += part;
            size -= part;
            if (text_size_ >= retry_at_) run();
        }
    }

    // Read the rest of the text. Returns whether the document is complete.
    bool finish() {
        check_open();
        run();
        return state_ == State::END && text_size_ == 0;
    }

    int64_t offset() const { return consumed_ + static_cast<int64_t>(text_size_); }
    int64_t complete_offset() const { return consumed_; }
    int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
    bool saw_events() const { return saw_events_; }
    bool saw_document() const { return state_ != State::START; }

    // The columns, which the caller takes over; the scanner cannot be used any more.
    Scanned take() {
        check_open();
        taken_ = true;
        Scanned out = rows_.take();
        for (const auto& [key, value] : header_)
            out.header.append(nb::make_tuple(nb::bytes(key.data(), key.size()), nb::bytes(value.data(), value.size())));
        out.repairs["raw control characters"] = repaired_.control_characters;
        out.repairs["bare quotes"] = repaired_.bare_quotes;
        out.repairs["lone backslashes"] = repaired_.lone_backslashes;
        out.repairs["trailing commas"] = repaired_.trailing_commas;
        out.repairs["values that are no numbers"] = repaired_.not_numbers;
        out.repairs["bytes that are not UTF-8"] = repaired_.not_utf8;
        return out;
    }

  private:
    enum class State { START, FIRST_MEMBER, NEXT_MEMBER, FIRST_EVENT, NEXT_EVENT, END };

    void check_open() const {
        if (taken_) throw std::runtime_error("the scanner's columns have been taken");
    }

    void append(const char* data, size_t size) {
        text_.reserve(text_size_ + size + PADDING);
        std::memcpy(text_.data() + text_size_, data, size);
        ascii_ = ascii_ && all_ascii(data, size);
        text_size_ += size;
        std::memset(text_.data() + text_size_, 0, PADDING);
    }

    // Read units until the text ends, and store the incomplete rest.
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
        if (text_size_ > MAX_UNIT) throw ScanError{consumed_, "one event or header value of more than 64 MiB", true};
        std::memmove(text_.data(), unit_, text_size_ + PADDING);
        ascii_ = all_ascii(text_.data(), text_size_);
        retry_at_ = text_size_ + text_size_ / 2;  // a unit longer than a block is not read again for every block
    }

    // Read one unit. Returns false at the end of the document.
    bool step() {
        if (state_ == State::START && consumed_ == 0 && unit_ == text_.data()) skip_byte_order_mark();
        in_.space();
        unit_ = in_.p;  // white space is not read again
        switch (state_) {
            case State::START:
                if (*in_.p == '[') {
                    state_ = State::FIRST_EVENT;
                    bare_ = saw_events_ = true;
                } else if (*in_.p == '{') {
                    state_ = State::FIRST_MEMBER;
                } else {
                    in_.fail(in_.p, "expected { or [");
                }
                ++in_.p;
                return true;
            case State::FIRST_MEMBER:
                if (*in_.p == '}') return ++in_.p, state_ = State::END, true;
                member();
                return true;
            case State::NEXT_MEMBER:
                if (!in_.another('}', "expected a comma or }")) return state_ = State::END, true;
                member();
                return true;
            case State::FIRST_EVENT:
                if (*in_.p == ']') return ++in_.p, end_events(), true;
                event();
                state_ = State::NEXT_EVENT;
                return true;
            case State::NEXT_EVENT:
                if (!in_.another(']', "expected a comma or ] behind an event")) return end_events(), true;
                event();
                return true;
            case State::END:
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

    void end_events() { state_ = bare_ ? State::END : State::NEXT_MEMBER; }

    void member() {
        Token key = in_.string(Place::KEY);
        std::string name;
        unescape(key.begin, key.end, name);
        in_.space();
        in_.expect(':', "expected a colon");
        in_.space();
        if (name == "traceEvents") {
            if (*in_.p != '[') in_.fail(in_.p, "traceEvents is not an array");
            ++in_.p;
            if (saw_events_) rows_.clear();  // a second traceEvents replaces the first, as in Python's json
            saw_events_ = true;
            state_ = State::FIRST_EVENT;
            return;
        }
        Token value = in_.value(Place::MEMBER);
        std::string text;
        Cursor::write(value, text);
        header_size_ += name.size() + text.size();
        if (header_size_ > MAX_UNIT) throw Malformed{key.begin, "header values of more than 64 MiB", true};
        header_.emplace_back(std::move(name), std::move(text));
        state_ = State::NEXT_MEMBER;
    }

    void event() {
        if (*in_.p != '{') {
            in_.skip(Place::ELEMENT);
            rows_.ignore();
            return;
        }
        event_.clear();
        ++in_.p;
        in_.space();
        if (*in_.p == '}') {
            ++in_.p;
            rows_.ignore();
            return;
        }
        uint32_t previous = 0;
        do {
            int32_t field = event_keys_.read(in_, previous);
            in_.space();
            in_.expect(':', "expected a colon");
            in_.space();
            if (field == ARGS) {
                event_.clear_arguments();
                if (*in_.p == '{')
                    arguments();
                else
                    in_.skip(Place::MEMBER);
            } else if (field == SKIPPED) {
                in_.skip(Place::MEMBER);
            } else {
                event_.fields[field] = in_.value(Place::MEMBER);
            }
        } while (in_.another('}', "expected a comma or }"));
        if (!rows_.add(event_)) throw Malformed{unit_, "more than 2^31 events", true};
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
                in_.skip(Place::MEMBER);
                continue;
            }
            Token& token = event_.slots[static_cast<size_t>(slot)];
            if (token.type == Type::NONE) event_.used.push_back(slot);
            token = in_.value(Place::MEMBER);
        } while (in_.another('}', "expected a comma or }"));
    }

    bool repair_;
    State state_ = State::START;
    bool taken_ = false, bare_ = false, saw_events_ = false, ascii_ = true;
    Buffer<char> text_;  // what is not read yet, and its padding
    size_t text_size_ = 0, retry_at_ = 0;
    int64_t consumed_ = 0;  // bytes before text_
    const char* unit_ = nullptr;
    Cursor in_;
    Keys event_keys_, arg_keys_;
    Event event_;
    Rows rows_;
    std::vector<std::pair<std::string, std::string>> header_;
    size_t header_size_ = 0;
    Repairs repaired_;
};

}  // namespace scan
