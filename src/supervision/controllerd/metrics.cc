#include "supervision/controllerd/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>

#include "controller.pb.h"

namespace tie::controller {
namespace {

constexpr std::string_view kNodeStates[] = {"initializing", "ready", "busy", "recycling", "error"};
constexpr std::string_view kComponents[] = {"runtime", "model-owner", "gpuhealth", "cloudboard"};
constexpr std::string_view kComponentStates[] = {
    "unreachable", "initializing", "ready",       "error",   "recycling",  "needs_warmup",  "unknown",
    "healthy",     "degraded",     "unavailable", "loading", "registered", "not registered"};
constexpr std::string_view kRefusals[] = {"busy", "key", "replay", "request"};
constexpr std::string_view kModelLabel = "model";

struct LabelRule {
  std::string_view name;
  std::span<const std::string_view> values;  // empty for "model": the served names
};
constexpr LabelRule kNodeState[] = {{"state", kNodeStates}};
constexpr LabelRule kRefusal[] = {{"reason", kRefusals}};
constexpr LabelRule kComponentState[] = {{"component", kComponents}, {kModelLabel, {}}, {"state", kComponentStates}};
constexpr LabelRule kComponent[] = {{"component", kComponents}, {kModelLabel, {}}};

struct Family {
  std::string_view name, type, help;
  std::span<const LabelRule> labels;  // a sample may leave out "model" and has all others
};
constexpr Family kFamilies[] = {
    {"tie_node_state", "gauge", "1 for the state that the node is in.", kNodeState},
    {"tie_node_state_seconds", "gauge", "How long the node has been in its state.", {}},
    {"tie_node_drained", "gauge", "1 while the operator keeps the node out of service.", {}},
    {"tie_requests_in_flight", "gauge", "Requests being served.", {}},
    {"tie_requests_allowed", "gauge", "Requests that may be in flight; 0: take none here.", {}},
    {"tie_requests_completed_total", "counter", "Requests answered to the final event.", {}},
    {"tie_requests_refused_total", "counter", "Requests refused before an answer.", kRefusal},
    {"tie_requests_failed_total", "counter", "Requests that the node lost before an answer began.", {}},
    {"tie_requests_cut_total", "counter", "Answers that ended without their final event.", {}},
    {"tie_requests_cancelled_total", "counter", "Requests whose client went away.", {}},
    {"tie_recycles_total", "counter", "Recycles of the runtimes.", {}},
    {"tie_last_recycle_seconds", "gauge", "From busy to ready, of the last recycle.", {}},
    {"tie_next_recycle_seconds", "gauge", "Until the next planned recycle; absent: none is planned.", {}},
    {"tie_component_state", "gauge", "1 for the state that a part of the node is in.", kComponentState},
    {"tie_component_state_seconds", "gauge", "How long a part has been in its state.", kComponent},
};

bool is_allowed(const LabelRule& rule, std::string_view value, const std::vector<std::string>& models) {
  if (rule.name == kModelLabel) return std::find(models.begin(), models.end(), value) != models.end();
  return std::find(rule.values.begin(), rule.values.end(), value) != rule.values.end();
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value == std::floor(value) && std::fabs(value) < 1e15 ? "%.0f" : "%.3f", value);
  return text;
}

void add_outcomes(MetricsPage& page, const v1::RequestOutcomes& outcomes) {
  auto add = [&](std::string_view family, const MetricsPage::Labels& labels, uint64_t count) {
    page.add(family, labels, static_cast<double>(count));
  };
  add("tie_requests_completed_total", {}, outcomes.completed());
  add("tie_requests_refused_total", {{"reason", "busy"}}, outcomes.refused_busy());
  add("tie_requests_refused_total", {{"reason", "key"}}, outcomes.refused_key());
  add("tie_requests_refused_total", {{"reason", "replay"}}, outcomes.refused_replay());
  add("tie_requests_refused_total", {{"reason", "request"}}, outcomes.refused_request());
  add("tie_requests_failed_total", {}, outcomes.failed());
  add("tie_requests_cut_total", {}, outcomes.cut());
  add("tie_requests_cancelled_total", {}, outcomes.cancelled());
}

}  // namespace

bool MetricsPage::add(std::string_view family, const Labels& labels, double value) {
  const auto* known =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return f.name == family; });
  if (known == std::end(kFamilies) || !std::isfinite(value)) return false;
  std::string line(family);
  size_t used = 0;
  char separator = '{';
  for (const LabelRule& rule : known->labels) {
    auto given = std::find_if(labels.begin(), labels.end(), [&](const auto& l) { return l.first == rule.name; });
    if (given == labels.end() && rule.name == kModelLabel) continue;
    if (given == labels.end() || !is_allowed(rule, given->second, models_)) return false;
    line += separator;
    line += std::string(rule.name) + "=\"" + std::string(given->second) + "\"";
    separator = ',';
    ++used;
  }
  if (used != labels.size()) return false;  // a label that is not on the list
  if (used > 0) line += '}';
  samples_.push_back({static_cast<size_t>(known - std::begin(kFamilies)), line + " " + number(value) + "\n"});
  return true;
}

std::string MetricsPage::text() const {
  std::string out;
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    std::string lines;
    for (const Sample& sample : samples_)
      if (sample.family == i) lines += sample.line;
    if (lines.empty()) continue;
    std::string name(kFamilies[i].name);
    out += "# HELP " + name + " " + std::string(kFamilies[i].help) + "\n# TYPE " + name + " " +
           std::string(kFamilies[i].type) + "\n" + lines;
  }
  return out;
}

std::string metrics_text(const v1::NodeStatus& status) {
  MetricsPage page({status.models().begin(), status.models().end()});
  auto seconds = [](uint64_t ms) { return static_cast<double>(ms) / 1000; };
  for (std::string_view state : kNodeStates)
    page.add("tie_node_state", {{"state", state}}, status.state() == state ? 1 : 0);
  page.add("tie_node_state_seconds", {}, seconds(status.state_since_ms()));
  page.add("tie_node_drained", {}, status.drained_by_operator() ? 1 : 0);
  page.add("tie_requests_in_flight", {}, status.in_flight());
  page.add("tie_requests_allowed", {}, status.max_requests());
  add_outcomes(page, status.outcomes());
  page.add("tie_recycles_total", {}, static_cast<double>(status.recycle_count()));
  if (status.recycle_count() > 0) page.add("tie_last_recycle_seconds", {}, seconds(status.last_recycle_ms()));
  if (status.next_recycle_in_ms() > 0) page.add("tie_next_recycle_seconds", {}, seconds(status.next_recycle_in_ms()));
  for (const v1::ComponentStatus& part : status.components()) {
    std::string_view name = part.name();
    size_t slash = name.find('/');
    MetricsPage::Labels labels = {{"component", name.substr(0, slash)}};
    if (slash != std::string_view::npos) labels.emplace_back(kModelLabel, name.substr(slash + 1));
    page.add("tie_component_state_seconds", labels, seconds(part.since_ms()));
    labels.emplace_back("state", part.state());
    page.add("tie_component_state", labels, 1);
  }
  return page.text();
}

}  // namespace tie::controller
