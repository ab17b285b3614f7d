// A cursor over JSON text, which validates it (RFC 8259) and returns tokens, that is places in the text and not yet values.
//
// The text ends in PADDING zero bytes. Zero is illegal everywhere in JSON, so no loop needs a bound: whatever stops at
// the end of the text throws Incomplete, and the caller tries again from the same place with more text.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "scan_number.hpp"
#include "scan_text.hpp"

namespace scan {

struct Incomplete {};
struct Malformed {
    const char* at;
    const char* reason;
    bool limit = false;  // legal JSON, but beyond a limit of the scanner
};

// The deepest nesting that is read. Python's json stops at about 1,000; traces nest about five deep.
constexpr int MAX_DEPTH = 256;

enum class Type : uint8_t { NONE, STRING, NUMBER, LITERAL, NULL_VALUE, NESTED };

struct Token {
    const char* begin = nullptr;  // of a string: after the opening quote
    const char* end = nullptr;
    uint64_t mantissa = 0;  // of a number: its digits without the point, exact up to 19 of them
    uint32_t digits = 0, fraction = 0;
    Type type = Type::NONE;
    bool escaped = false;  // a string whose text differs from its value
    bool negative = false, exponent = false;
    std::string_view text() const { return {begin, static_cast<size_t>(end - begin)}; }
};

// How often each kind of error was repaired.
struct Repairs {
    int64_t control_characters = 0, bare_quotes = 0, lone_backslashes = 0, trailing_commas = 0, not_numbers = 0, not_utf8 = 0;
    void add(const Repairs& other) {
        control_characters += other.control_characters;
        bare_quotes += other.bare_quotes;
        lone_backslashes += other.lone_backslashes;
        trailing_commas += other.trailing_commas;
        not_numbers += other.not_numbers;
        not_utf8 += other.not_utf8;
    }
};

// Where a string is, which decides what may follow it.
enum class Place { KEY, MEMBER, ELEMENT };

class Cursor {
  public:
    const char* p = nullptr;
    const char* end = nullptr;
    bool ascii = true;      // the text has no byte above 127, so no string's UTF-8 needs a check
    bool tolerant = false;  // repair what is not JSON, and count it in `repairs`
    Repairs repairs;

    [[noreturn]] void fail(const char* at, const char* reason) const {
        if (at >= end) throw Incomplete{};
        throw Malformed{at, reason, false};
    }
    void space() { p = skip_space(p); }
    void expect(char c, const char* reason) {
        if (*p != c) fail(p, reason);
        ++p;
    }
    // After a member or element: true where another one follows, false where `close` ends the container.
    bool another(char close, const char* reason) {
        space();
        if (*p == close) return ++p, false;
        if (*p != ',') fail(p, reason);
        ++p;
        space();
        if (*p != close) return true;
        if (!tolerant) fail(p, "a comma with nothing behind it");
        ++repairs.trailing_commas;
        return ++p, false;
    }

    Token string(Place place) {
        if (*p != '"') fail(p, "expected a string in double quotes");
        Token token;
        token.type = Type::STRING;
        token.begin = p + 1;
        const char* q = find_special(p + 1);
        while (*q != '"' || (tolerant && !closes(q, place))) {
            token.escaped = true;
            if (*q == '"') {
                ++repairs.bare_quotes;
                ++q;
            } else if (*q == '\\') {
                q = escape(q, place);
            } else {
                if (!tolerant || q >= end) fail(q, "a raw control character inside a string");
                ++repairs.control_characters;
                ++q;
            }
            q = find_special(q);
        }
        token.end = q;
        p = q + 1;
        if (!ascii) check_utf8(token);
        return token;
    }

    Token number() {
        Token token;
        token.type = Type::NUMBER;
        const char* s = token.begin = p;
        if (*s == '-') token.negative = true, ++s;
        const char* first = s;
        uint64_t mantissa = 0;
        while (is_digit(*s)) mantissa = mantissa * 10 + static_cast<unsigned>(*s++ - '0');
        if (s == first || (*first == '0' && s > first + 1)) return not_a_number(first);
        token.digits = static_cast<uint32_t>(s - first);
        if (*s == '.') {
            const char* point = ++s;
            while (is_digit(*s)) mantissa = mantissa * 10 + static_cast<unsigned>(*s++ - '0');
            if (s == point) fail(s, "a number without digits behind its point");
            token.fraction = static_cast<uint32_t>(s - point);
            token.digits += token.fraction;
        }
        if ((*s | 0x20) == 'e') {
            token.exponent = true;
            ++s;
            if (*s == '+' || *s == '-') ++s;
            const char* power = s;
            while (is_digit(*s)) ++s;
            if (s == power) fail(s, "a number without digits in its exponent");
        }
        if (s >= end) throw Incomplete{};  // more digits may follow
        token.mantissa = mantissa;
        token.end = p = s;
        return token;
    }

    // Any value. For an array or object the token is its whole text (under repair, the repaired and compact text).
    Token value(Place place) {
        switch (*p) {
            case '"': return string(place);
            case '{':
            case '[': {
                Token token;
                if (tolerant) {
                    mended_.emplace_back();
                    nested(1, &mended_.back());
                    token.begin = mended_.back().data();
                    token.end = token.begin + mended_.back().size();
                } else {
                    token.begin = p;
                    nested(1, nullptr);
                    token.end = p;
                }
                token.type = Type::NESTED;
                return token;
            }
            case 't': return literal("true", Type::LITERAL);
            case 'f': return literal("false", Type::LITERAL);
            case 'n':
                if (!tolerant || p[1] == 'u') return literal("null", Type::NULL_VALUE);
                return not_a_number(p);
            default: return number();
        }
    }
    void skip(Place place) {
        if (*p == '"')
            string(place);
        else
            value(place);
    }
    // A token as compact JSON.
    static void write(const Token& token, std::string& out) {
        if (token.type == Type::STRING)
            write_string(token, out);
        else if (token.type == Type::NULL_VALUE)
            out += "null";
        else
            out.append(token.begin, token.end);
    }
    static void write_string(const Token& token, std::string& out) {
        std::string value;
        unescape(token.begin, token.end, value);
        out += '"';
        for (char c : value) {
            static const char hex[] = "0123456789abcdef";
            if (c == '"' || c == '\\') {
                out += '\\';
                out += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                out += "\\u00";
                out += hex[c >> 4];
                out += hex[c & 15];
            } else {
                out += c;
            }
        }
        out += '"';
    }
    // Forget the texts that were repaired for the last unit.
    void new_unit() {
        mended_.clear();
        repairs = Repairs{};
    }

  private:
    Token literal(const char* word, Type type) {
        Token token;
        token.type = type;
        token.begin = p;
        for (; *word; ++word, ++p)
            if (*p != *word) fail(p, "expected a value");
        token.end = p;
        return token;
    }

    // What C's printf writes for a value that is not a number: read as null under repair.
    Token not_a_number(const char* at) {
        if (at >= end) throw Incomplete{};
        if (tolerant) {
            for (const char* word : {"nan", "NaN", "infinity", "Infinity", "inf", "Inf"}) {
                const char* s = *p == '-' ? p + 1 : p;
                const char* w = word;
                while (*w && *s == *w) ++s, ++w;
                if (*w && s >= end) throw Incomplete{};
                if (*w || static_cast<unsigned char>((*s | 0x20) - 'a') < 26) continue;
                ++repairs.not_numbers;
                Token token;
                token.type = Type::NULL_VALUE;
                token.begin = p;
                token.end = p = s;
                return token;
            }
        }
        fail(at, is_digit(*at) ? "a number with a leading zero" : "expected a value");
    }

    // At a backslash: the place after the escape.
    const char* escape(const char* q, Place place) {
        char c = q[1];
        if (c == '"' && tolerant && place == Place::MEMBER && closes(q + 1, place)) {
            ++repairs.lone_backslashes;  // "…\", "key": the backslash ends the name
            return q + 1;
        }
        if (c && std::memchr("\"\\/bfnrt", c, 8)) return q + 2;
        if (c == 'u') {
            int i = 2;
            while (i < 6 && hex_value(q[i]) >= 0) ++i;
            if (i == 6) return q + 6;
            if (!tolerant || q + i >= end) fail(q + i, "a \\u escape without four hexadecimal digits");
        } else if (!tolerant || q + 1 >= end) {
            fail(q + 1, "a backslash that starts no escape");
        }
        ++repairs.lone_backslashes;
        return q + 1;
    }

    // Under repair: whether the quote at `q` ends its string, which is decided by what follows.
    bool closes(const char* q, Place place) const {
        const char* s = look(q + 1);
        if (place == Place::KEY) return *s == ':';
        if (place == Place::ELEMENT) return *s == ',' || *s == ']';
        if (*s == '}') {
            s = look(s + 1);
            return *s == ',' || *s == '}' || *s == ']';
        }
        if (*s != ',') return false;
        s = look(s + 1);
        if (*s == '}') return true;
        if (*s != '"') return false;
        s = find_special(s + 1);
        if (s >= end) throw Incomplete{};
        return *s == '"' && *look(s + 1) == ':';
    }
    const char* look(const char* s) const {
        s = skip_space(s);
        if (s >= end) throw Incomplete{};
        return s;
    }

    void check_utf8(Token& token) {
        if (all_ascii(token.begin, static_cast<size_t>(token.end - token.begin))) return;
        for (const char* s = token.begin; s < token.end;) {
            int length = utf8_length(s, token.end);
            if (!length) {
                if (!tolerant) fail(s, "a byte that is not UTF-8");
                ++repairs.not_utf8;
                token.escaped = true;
                length = 1;
            }
            s += length;
        }
    }

    // An array or object. Its compact text is appended to `out` unless that is null.
    void nested(int depth, std::string* out) {
        if (depth > MAX_DEPTH) throw Malformed{p, "nested more than 256 levels deep", true};
        bool object = *p == '{';
        char close = object ? '}' : ']';
        if (out) *out += *p;
        ++p;
        space();
        if (*p == close) {
            ++p;
        } else {
            do {
                if (out && out->back() != '{' && out->back() != '[') *out += ',';
                if (object) {
                    Token key = string(Place::KEY);
                    if (out) write_string(key, *out), *out += ':';
                    space();
                    expect(':', "expected a colon");
                    space();
                }
                if (*p == '{' || *p == '[') {
                    nested(depth + 1, out);
                } else {
                    Token token = value(object ? Place::MEMBER : Place::ELEMENT);
                    if (out) write(token, *out);
                }
            } while (another(close, object ? "expected a comma or }" : "expected a comma or ]"));
        }
        if (out) *out += close;
    }
    std::deque<std::string> mended_;
};

// The text of an array or object without the white space between its tokens.
inline void compact(std::string_view text, std::string& out) {
    const char *s = text.data(), *end = s + text.size();
    while (s < end) {
        if (is_space(*s)) {
            ++s;
        } else if (*s == '"') {
            const char* q = s + 1;
            while (*q != '"') q += *q == '\\' ? 2 : 1;
            out.append(s, q + 1);
            s = q + 1;
        } else {
            out += *s++;
        }
    }
}

}  // namespace scan
