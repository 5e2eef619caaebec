// What may leave the node in clear as numbers: the node's and its parts' state, requests in flight, recycles. A fixed
// list of families, label names and label values; whatever is not on it is dropped, so that nothing of a request can
// become a metric, whoever adds one. Pure.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tie::v1 {
class NodeStatus;
}

namespace tie::controller {

class MetricsPage {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;
  // `models`: the served names, the only values of the label "model".
  explicit MetricsPage(std::vector<std::string> models) : models_(std::move(models)) {}
  // False, and nothing written, unless the family, its labels and their values are on the list.
  bool add(std::string_view family, const Labels& labels, double value);
  // Prometheus text, families in the order of the list.
  std::string text() const;

 private:
  struct Sample {
    size_t family;
    std::string line;
  };
  std::vector<std::string> models_;
  std::vector<Sample> samples_;
};

std::string metrics_text(const v1::NodeStatus& status);

}  // namespace tie::controller
