// Which word of a command line is no command, and which command was meant. CLI11 says of `tie bogus` only that a
// subcommand is required. Pure functions over the declared commands; one thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tie::cli {

// What to say about the first word that stands where a command is due and is none: the word, the nearest commands, and
// where the others are listed. Nothing when there is no such word. `words` without the program's name.
std::optional<std::string> explain_unknown_word(const CLI::App& app, const std::vector<std::string>& words);

// Those of `known` that a person may have meant by `word`, the nearest first; at most three.
std::vector<std::string> nearest_words(const std::string& word, const std::vector<std::string>& known);

}  // namespace tie::cli
