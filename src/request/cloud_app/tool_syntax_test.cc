#include "request/cloud_app/constraints/tool_syntax.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "request/cloud_app/testing.h"

namespace tie::request::app {
namespace {

struct ToolSyntaxTest : ::testing::Test {
  testing::TinyAssets assets;
  std::unique_ptr<ServedModel> model = assets.model();
  ToolSyntax detect(std::string_view text) const { return detect_tool_syntax(text, *model->vocab); }
};

TEST_F(ToolSyntaxTest, IsTheTemplatesOwn) {
  ToolSyntax tagged = detect("{% if tools %}{{ '<tool_call>\\n{\"name\":' }}{% endif %}");
  EXPECT_TRUE(tagged.in_template);
  EXPECT_EQ(tagged.style, ToolStyle::kTagged);
  ToolSyntax object = detect("{% if tools %}{{ '<|python_tag|>' }}{\"name\": …, \"parameters\": …}{% endif %}");
  EXPECT_EQ(object.style, ToolStyle::kObject);
  EXPECT_EQ(object.arguments_key, "parameters");
  EXPECT_FALSE(object.many);
  EXPECT_EQ(detect("{% if tools %}[AVAILABLE_TOOLS] [TOOL_CALLS] [{% endif %}").style, ToolStyle::kList);
  ToolSyntax named = detect("{% if tools %}[TOOL_CALLS]name[ARGS]{}{% endif %}");
  EXPECT_EQ(named.style, ToolStyle::kNamed);
  EXPECT_EQ(named.id_marker, "");
  EXPECT_EQ(detect("{% if tools %}[TOOL_CALLS]name[CALL_ID]id[ARGS]{}{% endif %}").id_marker, "[CALL_ID]");
}

TEST_F(ToolSyntaxTest, ATemplateWithoutToolsOrWithAFormOfItsOwnGetsTheGenericOne) {
  for (const char* text : {"", "{{ messages }}", "{% if tools %}<function=f>{% endif %}",
                           "{% if tools %}[TOOL_CALLS]name[CALL_ID]{}{% endif %}"}) {
    EXPECT_FALSE(detect(text).in_template) << text;
    EXPECT_EQ(detect(text).style, ToolStyle::kTagged) << text;
  }
}

TEST_F(ToolSyntaxTest, PublicTemplatesAreTold) {
  const char* shared = std::getenv("TIE_SHARED_DATA");
  std::filesystem::path folder =
      std::filesystem::path(shared ? shared : TIE_SOURCE_DIR "/../shared/data") / "chat_templates/templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  int tagged = 0, object = 0, list = 0, named = 0, xml = 0, generic = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    std::string text(std::istreambuf_iterator<char>(file), {});
    ToolSyntax syntax = detect(text);
    if (!syntax.in_template)
      ++generic;
    else if (syntax.style == ToolStyle::kTagged)
      ++tagged;
    else if (syntax.style == ToolStyle::kObject)
      ++object;
    else if (syntax.style == ToolStyle::kNamed)
      ++named;
    else if (syntax.style == ToolStyle::kXml)
      ++xml;
    else
      ++list;
  }
  std::printf("templates: %d tagged, %d object, %d list, %d named, %d xml, %d generic\n", tagged, object, list, named,
              xml, generic);
  EXPECT_GT(named, 0);
  EXPECT_GT(xml, 0);
  EXPECT_GT(tagged, 0);
  EXPECT_GT(object, 0);
  EXPECT_GT(list, 0);
}

TEST_F(ToolSyntaxTest, ToolsKeepTheirSchemasText) {
  auto request = testing::chat("hi");
  auto* tool = request.add_tools();
  tool->set_name("f");
  tool->set_description("does \"it\"");
  tool->set_parameters_json(R"({"type":"object","properties":{"z":{},"a":{}}})");
  std::string text = tools_json(request);
  EXPECT_NE(text.find(R"("properties":{"z":{},"a":{}})"), std::string::npos) << text;
  auto parsed = nlohmann::json::parse(text);
  EXPECT_EQ(parsed[0]["type"], "function");
  EXPECT_EQ(parsed[0]["function"]["description"], "does \"it\"");
  EXPECT_NE(tool_instructions(request).find("<tool_call>"), std::string::npos);
}

TEST_F(ToolSyntaxTest, IdsAreInTheTemplatesForm) {
  std::string id = new_call_id({.style = ToolStyle::kList});
  EXPECT_EQ(id.size(), 9u);
  EXPECT_EQ(new_call_id({.style = ToolStyle::kNamed}).size(), 9u);
  EXPECT_TRUE(new_call_id({}).starts_with("call_"));
  EXPECT_NE(new_call_id({}), new_call_id({}));
}

}  // namespace
}  // namespace tie::request::app
