#include "client/cli/unknown_word.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

namespace tie::cli {
namespace {

constexpr size_t kMostSuggestions = 3;
constexpr size_t kLongestWord = 64;

// Letters to change, insert, remove or swap with their neighbour.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  std::iota(d[0].begin(), d[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) out.push_back(sub->get_name());
  return out;
}

bool takes_positionals(const CLI::App& app) {
  auto options = app.get_options();
  return std::any_of(options.begin(), options.end(), [](const CLI::Option* o) { return o->get_positional(); });
}

const CLI::App* command_named(const CLI::App& app, const std::string& word) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (sub->check_name(word)) return sub;
  return nullptr;
}

// Whether the word after `flag` is its value. A flag of an outer command may stand here as well.
bool has_value_after(const std::vector<const CLI::App*>& path, const std::string& flag) {
  if (flag.find('=') != std::string::npos) return false;
  for (const CLI::App* app : path)
    if (const CLI::Option* option = app->get_option_no_throw(flag)) return option->get_items_expected_min() > 0;
  return false;
}

std::string explain(const CLI::App& app, const std::string& path, const std::string& word) {
  auto near = nearest_words(word, commands_of(app));
  for (std::string& one : near) one = path + " " + one;
  std::string meant = near.empty() ? "" : fmt::format(" Did you mean: {}?", fmt::join(near, ", "));
  return fmt::format("{}: there is no command '{}'.{} All of them: {} --help", path, word.substr(0, kLongestWord),
                     meant, path);
}

}  // namespace

std::vector<std::string> nearest_words(const std::string& word, const std::vector<std::string>& known) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& candidate : known) {
    if (word.size() > kLongestWord) break;
    bool begins = word.size() >= 2 && (candidate.starts_with(word) || word.starts_with(candidate));
    size_t far = begins ? 1 : distance(word, candidate);
    if (far <= std::max<size_t>(1, std::min(word.size(), candidate.size()) / 2)) near.emplace_back(far, candidate);
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> out;
  for (size_t i = 0; i < near.size() && i < kMostSuggestions; ++i) out.push_back(near[i].second);
  return out;
}

std::optional<std::string> explain_unknown_word(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<const CLI::App*> path{&app};
  std::string shown = app.get_name();
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const CLI::App& here = *path.back();
    if (word == "--") return std::nullopt;
    if (word.starts_with('-')) {
      i += has_value_after(path, word);
      continue;
    }
    if (const CLI::App* command = command_named(here, word)) {
      path.push_back(command);
      shown += " " + command->get_name();
      continue;
    }
    if (commands_of(here).empty() || takes_positionals(here)) return std::nullopt;
    return explain(here, shown, word);
  }
  return std::nullopt;
}

}  // namespace tie::cli
