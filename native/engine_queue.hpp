// The queue of the event loop: events in the order of (time, task id, phase).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lumos {

// A 4-ary heap whose root may be empty for a while: an event that causes another one then costs one sift instead of two.
class EventQueue {
  public:
    enum Phase : uint32_t { START, END, RELEASE, VACATE };
    struct Event {
        int64_t time;
        int32_t task;
        Phase phase;
        uint32_t index;
    };

    void push(int64_t time, int32_t task, Phase phase, uint32_t index = 0) {
        const Key key = Key(uint64_t(time) ^ SIGN) << 64 | uint64_t(uint32_t(task)) << 32 | uint32_t(phase) << 30 | index;
        if (hole_) {
            hole_ = false;
            sink(key);
        } else {
            keys_.push_back(key);
            size_t at = keys_.size() - 1;
            while (at && key < keys_[(at - 1) / 4]) {
                keys_[at] = keys_[(at - 1) / 4];
                at = (at - 1) / 4;
            }
            keys_[at] = key;
        }
    }

    bool pop(Event& out) {
        if (hole_) {
            hole_ = false;
            const Key last = keys_.back();
            keys_.pop_back();
            if (!keys_.empty()) sink(last);
        }
        if (keys_.empty()) return false;
        const Key key = keys_[0];
        const uint32_t low = uint32_t(key);
        out = {int64_t(uint64_t(key >> 64) ^ SIGN), int32_t(uint64_t(key) >> 32), Phase(low >> 30), low & 0x3fffffffu};
        hole_ = true;
        return true;
    }

  private:
    __extension__ using Key = unsigned __int128;
    static constexpr uint64_t SIGN = uint64_t(1) << 63;

    void sink(Key key) {
        const size_t size = keys_.size();
        size_t at = 0;
        for (size_t child = 1; child < size; child = 4 * at + 1) {
            size_t least = child;
            const size_t stop = std::min(child + 4, size);
            for (size_t c = child + 1; c < stop; ++c)
                if (keys_[c] < keys_[least]) least = c;
            if (key <= keys_[least]) break;
            keys_[at] = keys_[least];
            at = least;
        }
        keys_[at] = key;
    }

    std::vector<Key> keys_;
    bool hole_ = false;
};

}  // namespace lumos
