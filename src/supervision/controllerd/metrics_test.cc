#include "supervision/controllerd/metrics.h"

#include <gtest/gtest.h>

#include <limits>

#include "controller.pb.h"

namespace tie::controller {
namespace {

TEST(MetricsPage, WritesWhatIsOnTheListAsPrometheusReadsIt) {
  v1::NodeStatus status;
  status.set_state("ready");
  status.set_state_since_ms(1500);
  status.set_in_flight(3);
  status.set_max_requests(32);
  status.set_recycle_count(2);
  status.set_last_recycle_ms(437);
  status.mutable_outcomes()->set_completed(11);
  status.mutable_outcomes()->set_refused_busy(1);
  status.mutable_outcomes()->set_refused_key(2);
  status.mutable_outcomes()->set_refused_replay(3);
  status.mutable_outcomes()->set_refused_request(4);
  status.mutable_outcomes()->set_failed(5);
  status.mutable_outcomes()->set_cancelled(6);
  status.mutable_outcomes()->set_cut(7);
  status.add_models("m");
  auto& part = *status.add_components();
  part.set_name("runtime/m");
  part.set_state("ready");
  part.set_since_ms(2000);
  std::string text = metrics_text(status);
  for (const char* line :
       {"# TYPE tie_node_state gauge\n", "tie_node_state{state=\"ready\"} 1\n", "tie_node_state{state=\"error\"} 0\n",
        "tie_node_state_seconds 1.500\n", "tie_requests_in_flight 3\n", "tie_requests_allowed 32\n",
        "# TYPE tie_requests_completed_total counter\ntie_requests_completed_total 11\n",
        "tie_requests_refused_total{reason=\"busy\"} 1\n", "tie_requests_refused_total{reason=\"key\"} 2\n",
        "tie_requests_refused_total{reason=\"replay\"} 3\n", "tie_requests_refused_total{reason=\"request\"} 4\n",
        "tie_requests_failed_total 5\n", "tie_requests_cancelled_total 6\n", "tie_requests_cut_total 7\n",
        "# TYPE tie_recycles_total counter\ntie_recycles_total 2\n", "tie_last_recycle_seconds 0.437\n",
        "tie_component_state{component=\"runtime\",model=\"m\",state=\"ready\"} 1\n",
        "tie_component_state_seconds{component=\"runtime\",model=\"m\"} 2\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  EXPECT_EQ(text.find("tie_next_recycle_seconds"), std::string::npos);
}

TEST(MetricsPage, DropsWhatIsNotOnTheList) {
  MetricsPage page({"m"});
  EXPECT_FALSE(page.add("tie_prompt_bytes", {}, 5));
  EXPECT_FALSE(page.add("tie_node_state", {{"state", "canary"}}, 1));
  EXPECT_FALSE(page.add("tie_node_state", {}, 1));
  EXPECT_FALSE(page.add("tie_node_state", {{"state", "ready"}, {"user", "canary"}}, 1));
  EXPECT_FALSE(page.add("tie_requests_in_flight", {{"request_id", "1"}}, 1));
  EXPECT_FALSE(page.add("tie_requests_refused_total", {{"reason", "canary"}}, 1));
  EXPECT_FALSE(page.add("tie_component_state_seconds", {{"component", "runtime"}, {"model", "canary"}}, 1));
  EXPECT_FALSE(page.add("tie_requests_in_flight", {}, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(page.text(), "");
}

TEST(MetricsPage, SentencesOfTheStatusStayOut) {
  v1::NodeStatus status;
  status.set_state("error");
  status.set_reason("canary sentence");
  auto& part = *status.add_components();
  part.set_name("canary-component");
  part.set_state("canary-state");
  part.set_message("canary message");
  EXPECT_EQ(metrics_text(status).find("canary"), std::string::npos);
}

}  // namespace
}  // namespace tie::controller
