// Enums that Python has too. The text of an enum's names is stored with it, so that a module can say which members it was built
// with; Python compares that with its own enum of the same name when it imports the module (src/lumos/vocabulary.py).
#pragma once

// An enum whose values count from 0 in the order of its names, and NAME_TEXT, those names with commas between them.
#define LUMOS_SHARED_ENUM(NAME, TYPE, ...) \
    enum NAME : TYPE { __VA_ARGS__ };      \
    constexpr const char NAME##_TEXT[] = #__VA_ARGS__

// The same as an enum class, whose members are used with the enum's name before them.
#define LUMOS_SHARED_ENUM_CLASS(NAME, TYPE, ...) \
    enum class NAME : TYPE { __VA_ARGS__ };      \
    constexpr const char NAME##_TEXT[] = #__VA_ARGS__
