// Bytes, strings and the tables that intern them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace scan {

// Bytes after the end of a text that may be read but are never used, so that vectorised loops need no bounds.
constexpr size_t PADDING = 64;

// A growing array of plain values. Grows by realloc, which moves pages rather than bytes where the system can, and whose
// untouched capacity costs no memory; the storage can be handed over and freed by free().
template <class T>
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return size_; }
    T& operator[](size_t i) { return data_[i]; }
    const T& operator[](size_t i) const { return data_[i]; }
    void clear() { size_ = 0; }

    void reserve(size_t wanted) {
        if (wanted <= capacity_) return;
        size_t grown = capacity_ + capacity_ / 2 + 64;
        resize_storage(grown < wanted ? wanted : grown);
    }
    void push(T value) {
        if (size_ == capacity_) reserve(size_ + 1);
        data_[size_++] = value;
    }
    void append(const T* values, size_t count) {
        reserve(size_ + count);
        if (count) std::memcpy(data_ + size_, values, count * sizeof(T));
        size_ += count;
    }
    void set_size(size_t size) { size_ = size; }  // within the capacity
    // The storage, shrunk to its size, for the caller to free().
    T* release() {
        resize_storage(size_ ? size_ : 1);
        T* out = data_;
        data_ = nullptr;
        size_ = capacity_ = 0;
        return out;
    }

  private:
    void resize_storage(size_t capacity) {
        void* moved = std::realloc(data_, capacity * sizeof(T));
        if (!moved) throw std::bad_alloc();
        data_ = static_cast<T*>(moved);
        capacity_ = capacity;
    }
    T* data_ = nullptr;
    size_t size_ = 0, capacity_ = 0;
};

inline uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Hashes eight bytes at a time by multiplying and folding (as wyhash does). The seed differs per process, because names come from
// files that may be hostile.
inline uint64_t hash_bytes(const char* s, size_t n, uint64_t seed) {
    constexpr uint64_t k0 = 0x9E3779B97F4A7C15u, k1 = 0xD6E8FEB86659FD93u;
    uint64_t h = seed ^ (n * k0), a = 0, b = 0;
    if (n >= 16) {
        const char* last = s + n - 16;
        for (; s < last; s += 16) {
            std::memcpy(&a, s, 8);
            std::memcpy(&b, s + 8, 8);
            h = mix(a ^ h, b ^ k1);
        }
        std::memcpy(&a, last, 8);
        std::memcpy(&b, last + 8, 8);
    } else if (n >= 8) {
        std::memcpy(&a, s, 8);
        std::memcpy(&b, s + n - 8, 8);
    } else if (n >= 4) {
        uint32_t low, high;
        std::memcpy(&low, s, 4);
        std::memcpy(&high, s + n - 4, 4);
        a = low;
        b = high;
    } else if (n) {
        a = static_cast<uint8_t>(s[0]) | static_cast<uint64_t>(static_cast<uint8_t>(s[n / 2])) << 8 |
            static_cast<uint64_t>(static_cast<uint8_t>(s[n - 1])) << 16;
    }
    return mix(a ^ h, b ^ k1 ^ k0);
}

// Each distinct string once, numbered in order of first appearance.
class Interner {
  public:
    explicit Interner(uint64_t seed) : seed_(seed) { offsets_.push(0); }
    ~Interner() { std::free(slots_); }
    Interner(const Interner&) = delete;
    Interner& operator=(const Interner&) = delete;

    size_t size() const { return offsets_.size() - 1; }
    std::string_view operator[](size_t i) const {
        return {bytes_.data() + offsets_[i], static_cast<size_t>(offsets_[i + 1] - offsets_[i])};
    }
    // The string's number, or -1 if it is new.
    int32_t find(std::string_view text) const { return slots_ ? find_hashed(text, hash_bytes(text.data(), text.size(), seed_)) : -1; }
    // The string's number; `added` says whether it is new.
    int32_t intern(std::string_view text, bool& added) {
        if ((size() + 1) * 2 > capacity_) rehash();
        uint64_t hash = hash_bytes(text.data(), text.size(), seed_);
        int32_t found = find_hashed(text, hash);
        added = found < 0;
        if (!added) return found;
        int32_t id = static_cast<int32_t>(size());
        bytes_.append(text.data(), text.size());
        offsets_.push(static_cast<int64_t>(bytes_.size()));
        place(hash, id);
        return id;
    }
    int32_t intern(std::string_view text) {
        bool added;
        return intern(text, added);
    }
    Buffer<char>& bytes() { return bytes_; }
    Buffer<int64_t>& offsets() { return offsets_; }

  private:
    // A slot holds the upper half of the hash and the number + 1; 0 is free.
    int32_t find_hashed(std::string_view text, uint64_t hash) const {
        for (size_t at = hash & (capacity_ - 1);; at = (at + 1) & (capacity_ - 1)) {
            uint64_t slot = slots_[at];
            if (!slot) return -1;
            if ((slot ^ hash) >> 32) continue;
            int32_t id = static_cast<int32_t>(static_cast<uint32_t>(slot)) - 1;
            std::string_view known = (*this)[static_cast<size_t>(id)];
            if (known.size() == text.size() && (text.empty() || !std::memcmp(known.data(), text.data(), text.size()))) return id;
        }
    }
    void place(uint64_t hash, int32_t id) {
        size_t at = hash & (capacity_ - 1);
        while (slots_[at]) at = (at + 1) & (capacity_ - 1);
        slots_[at] = (hash >> 32 << 32) | static_cast<uint32_t>(id + 1);
    }
    void rehash() {
        size_t grown = capacity_ ? capacity_ * 2 : 256;
        auto* fresh = static_cast<uint64_t*>(std::calloc(grown, sizeof(uint64_t)));
        if (!fresh) throw std::bad_alloc();
        std::free(slots_);
        slots_ = fresh;
        capacity_ = grown;
        for (size_t i = 0; i < size(); ++i) {
            std::string_view text = (*this)[i];
            place(hash_bytes(text.data(), text.size(), seed_), static_cast<int32_t>(i));
        }
    }
    uint64_t seed_;
    uint64_t* slots_ = nullptr;
    size_t capacity_ = 0;
    Buffer<char> bytes_;
    Buffer<int64_t> offsets_;
};

// The first quote, backslash or control character at or after `s`. The text must end in a control character (its padding).
inline const char* find_special(const char* s) {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    for (;; s += 16) {
        __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s));
        __m128i hit =
            _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(c, quote), _mm_cmpeq_epi8(c, slash)), _mm_cmpeq_epi8(_mm_min_epu8(c, control), c));
        unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(hit));
        if (mask) return s + __builtin_ctz(mask);
    }
#else
    while (*s != '"' && *s != '\\' && static_cast<uint8_t>(*s) >= 0x20) ++s;
    return s;
#endif
}

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// The first byte at or after `s` that is not JSON white space.
inline const char* skip_space(const char* s) {
    if (static_cast<uint8_t>(*s) > ' ') return s;
    if (*s == ' ' && static_cast<uint8_t>(s[1]) > ' ') return s + 1;
#if defined(__SSE2__)
    const __m128i space = _mm_set1_epi8(' '), line = _mm_set1_epi8('\n'), tab = _mm_set1_epi8('\t'), feed = _mm_set1_epi8('\r');
    for (;; s += 16) {
        __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s));
        __m128i blank = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(c, space), _mm_cmpeq_epi8(c, line)),
                                     _mm_or_si128(_mm_cmpeq_epi8(c, tab), _mm_cmpeq_epi8(c, feed)));
        unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(blank)) ^ 0xffffu;
        if (mask) return s + __builtin_ctz(mask);
    }
#else
    while (is_space(*s)) ++s;
    return s;
#endif
}

// Length of the well-formed UTF-8 sequence at `s`, or 0 (Unicode 15, table 3-7). Reads no further than `end`.
inline int utf8_length(const char* s, const char* end) {
    auto byte = [s, end](int i) -> unsigned { return s + i < end ? static_cast<uint8_t>(s[i]) : 0u; };
    auto tail = [&byte](int i) { return (byte(i) & 0xC0u) == 0x80u; };
    unsigned c = byte(0);
    if (c < 0x80) return 1;
    if (c >= 0xC2 && c <= 0xDF) return tail(1) ? 2 : 0;
    if (c >= 0xE0 && c <= 0xEF) {
        unsigned low = c == 0xE0 ? 0xA0 : 0x80, high = c == 0xED ? 0x9F : 0xBF;
        return byte(1) >= low && byte(1) <= high && tail(2) ? 3 : 0;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        unsigned low = c == 0xF0 ? 0x90 : 0x80, high = c == 0xF4 ? 0x8F : 0xBF;
        return byte(1) >= low && byte(1) <= high && tail(2) && tail(3) ? 4 : 0;
    }
    return 0;
}

inline bool all_ascii(const char* s, size_t n) {
    uint64_t bits = 0, word;
    for (; n >= 8; s += 8, n -= 8) {
        std::memcpy(&word, s, 8);
        bits |= word;
    }
    for (; n; ++s, --n) bits |= static_cast<uint8_t>(*s);
    return !(bits & 0x8080808080808080u);
}

inline void append_utf8(std::string& out, uint32_t c) {
    if (c < 0x80) {
        out += static_cast<char>(c);
    } else if (c < 0x800) {
        out += static_cast<char>(0xC0 | c >> 6);
        out += static_cast<char>(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        out += static_cast<char>(0xE0 | c >> 12);
        out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
        out += static_cast<char>(0x80 | (c & 0x3F));
    } else {
        out += static_cast<char>(0xF0 | c >> 18);
        out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
        out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
        out += static_cast<char>(0x80 | (c & 0x3F));
    }
}

inline int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// The value of a JSON string, from the text between its quotes. Escapes that JSON does not define stay as they are, and bytes that
// are not UTF-8 become U+FFFD; both occur only in a file under repair. A surrogate without its partner is retained, as in Python's
// json.
inline void unescape(const char* s, const char* end, std::string& out) {
    auto hex4 = [end](const char* at) -> int32_t {
        if (end - at < 4) return -1;
        int32_t value = 0;
        for (int i = 0; i < 4; ++i) {
            int digit = hex_value(at[i]);
            if (digit < 0) return -1;
            value = value << 4 | digit;
        }
        return value;
    };
    while (s < end) {
        if (*s != '\\') {
            int length = utf8_length(s, end);
            if (length)
                out.append(s, static_cast<size_t>(length));
            else
                append_utf8(out, 0xFFFD);
            s += length ? length : 1;
            continue;
        }
        char c = s + 1 < end ? s[1] : '\0';
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char* known = c ? static_cast<const char*>(std::memchr(from, c, 8)) : nullptr;
        if (known) {
            out += to[known - from];
            s += 2;
            continue;
        }
        int32_t high = c == 'u' ? hex4(s + 2) : -1;
        if (high < 0) {
            out += *s++;
            continue;
        }
        s += 6;
        if (high >= 0xD800 && high < 0xDC00 && end - s >= 6 && s[0] == '\\' && s[1] == 'u') {
            int32_t low = hex4(s + 2);
            if (low >= 0xDC00 && low < 0xE000) {
                append_utf8(out, 0x10000u + (static_cast<uint32_t>(high - 0xD800) << 10) + static_cast<uint32_t>(low - 0xDC00));
                s += 6;
                continue;
            }
        }
        append_utf8(out, static_cast<uint32_t>(high));
    }
}

}  // namespace scan
