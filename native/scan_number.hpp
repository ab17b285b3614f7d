// Exact conversion of decimal text to int64 and double: a timestamp never passes through a float.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <locale>
#include <sstream>
#include <string_view>
#include <system_error>

namespace scan {

enum class Parsed { EXACT, ROUNDED, TOO_LARGE, NOT_A_NUMBER };

inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

// text * 10^scale as int64, rounded half to even. `text` is a decimal number with optional fraction and exponent.
// Unsigned values from 2^63 to 2^64 - 1 keep their 64 bits (ids are hashes; 2^64 - 1 means "none", which is -1).
inline Parsed decimal(std::string_view text, int scale, int64_t& out) {
    const char *s = text.data(), *end = s + text.size();
    bool negative = s < end && *s == '-';
    if (s < end && (*s == '-' || *s == '+')) ++s;
    const char* digits = s;
    int64_t point = 0;  // digits before the decimal point
    while (s < end && is_digit(*s)) ++s, ++point;
    int64_t count = point;
    const char* digits_end = s;
    if (s < end && *s == '.') {
        ++s;
        while (s < end && is_digit(*s)) ++s, ++count;
        digits_end = s;
    }
    if (!count) return Parsed::NOT_A_NUMBER;
    if (s < end && (*s == 'e' || *s == 'E')) {
        ++s;
        bool down = s < end && *s == '-';
        if (s < end && (*s == '-' || *s == '+')) ++s;
        if (s == end) return Parsed::NOT_A_NUMBER;
        int64_t exponent = 0;
        for (; s < end && is_digit(*s); ++s)
            if (exponent < 1000000000) exponent = exponent * 10 + (*s - '0');
        point += down ? -exponent : exponent;
    }
    if (s != end) return Parsed::NOT_A_NUMBER;
    point += scale;

    uint64_t value = 0;
    int64_t seen = 0;
    int next = 0;         // the first digit that is cut off (where point < 0, a zero before all written digits)
    bool beyond = false;  // whether any digit after it is not zero
    auto shift_in = [&value](unsigned digit) {
        if (value > (std::numeric_limits<uint64_t>::max() - digit) / 10) return false;
        value = value * 10 + digit;
        return true;
    };
    for (const char* d = digits; d < digits_end; ++d) {
        if (*d == '.') continue;
        if (seen < point) {
            if (!shift_in(static_cast<unsigned>(*d - '0'))) return Parsed::TOO_LARGE;
        } else if (seen == point) {
            next = *d - '0';
        } else {
            beyond |= *d != '0';
        }
        ++seen;
    }
    for (; seen < point && value; ++seen)
        if (!shift_in(0)) return Parsed::TOO_LARGE;
    if (next > 5 || (next == 5 && (beyond || (value & 1)))) {
        if (value == std::numeric_limits<uint64_t>::max()) return Parsed::TOO_LARGE;
        ++value;
    }
    if (negative) {
        if (value > uint64_t{1} << 63) return Parsed::TOO_LARGE;
        out = static_cast<int64_t>(~value + 1);
    } else {
        out = static_cast<int64_t>(value);
    }
    return next || beyond ? Parsed::ROUNDED : Parsed::EXACT;
}

// Hexadecimal digits (an address or handle) as 64 bits.
inline Parsed hexadecimal(std::string_view digits, int64_t& out) {
    uint64_t value = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error == std::errc::result_out_of_range) return Parsed::TOO_LARGE;
    if (error != std::errc() || end != digits.data() + digits.size()) return Parsed::NOT_A_NUMBER;
    out = static_cast<int64_t>(value);
    return Parsed::EXACT;
}

// The nearest double. Beyond its range: infinity or zero, as Python's float() gives.
inline bool floating(std::string_view text, double& out) {
#if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error == std::errc::result_out_of_range) {
        int64_t ignored;
        bool large = decimal(text, 0, ignored) == Parsed::TOO_LARGE;
        out = (text.front() == '-' ? -1.0 : 1.0) * (large ? std::numeric_limits<double>::infinity() : 0.0);
        return true;
    }
    return error == std::errc() && end == text.data() + text.size();
#else
    std::istringstream stream{std::string(text)};
    stream.imbue(std::locale::classic());
    stream >> out;
    return !stream.fail() && stream.peek() == std::char_traits<char>::eof();
#endif
}

}  // namespace scan
