// The keys of JSON objects, recognised by guessing the next one.

#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "scan_json.hpp"

namespace scan {

constexpr size_t MAX_KEY = 47;     // keys shorter than this are guessed
constexpr size_t MAX_KEYS = 4096;  // most keys that are remembered
constexpr int32_t SKIPPED = -1;    // the meaning of a key that nothing asks for

// The keys of one kind of object. Profilers write them in nearly the same order each time, so the key that followed last
// time is tried first, which usually saves finding the key's end, hashing it and looking it up.
class Keys {
  public:
    explicit Keys(uint64_t seed) : names_(seed) { add("", SKIPPED); }

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
        if (plain && !text.empty() && text.size() < MAX_KEY) {  // others are not guessed
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
        int32_t meaning = SKIPPED;
        uint32_t next = 0;
        uint32_t length = 0;          // with the closing quote
        char text[MAX_KEY + 1] = {};  // (a multiple of 16) as it is written, with the closing quote

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
        Token token = in.string(Place::KEY);
        std::string_view text = token.text();
        if (token.escaped) {
            scratch_.clear();
            unescape(token.begin, token.end, scratch_);
            text = scratch_;
        }
        int32_t found = names_.find(text);
        if (found < 0) {
            if (names_.size() >= MAX_KEYS) return previous = 0, SKIPPED;
            add(text, SKIPPED);
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

}  // namespace scan
