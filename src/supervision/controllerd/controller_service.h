// The operator's face of the controller (proto/controller.proto): status at a glance, recycle, drain, resume, reload.
// Serves controller.sock, whose directory and mode keep everybody but the operator out.
#pragma once
#include "controller.grpc.pb.h"
#include "supervision/controllerd/node_controller.h"

namespace tie::controller {

class ControllerService final : public v1::Controller::Service {
 public:
  explicit ControllerService(NodeController& node) : node_(node) {}
  grpc::Status GetStatus(grpc::ServerContext*, const v1::NodeStatusRequest*, v1::NodeStatus* reply) override;
  grpc::Status GetMetrics(grpc::ServerContext*, const v1::NodeStatusRequest*, v1::NodeMetrics* reply) override;
  grpc::Status WatchStatus(grpc::ServerContext* context, const v1::NodeStatusRequest*,
                           grpc::ServerWriter<v1::NodeStatus>* writer) override;
  grpc::Status Recycle(grpc::ServerContext* context, const v1::NodeRecycleRequest* request,
                       v1::NodeStatus* reply) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::NodeDrainRequest* request, v1::NodeStatus* reply) override;
  grpc::Status Resume(grpc::ServerContext* context, const v1::NodeResumeRequest*, v1::NodeStatus* reply) override;
  grpc::Status Reload(grpc::ServerContext* context, const v1::NodeReloadRequest*, v1::NodeStatus* reply) override;

 private:
  grpc::Status recycle(grpc::ServerContext* context, RecycleWanted wanted, v1::NodeStatus* reply);
  void fill_now(v1::NodeStatus& out) const;
  void fill(const Core& core, v1::NodeStatus& out) const;
  NodeController& node_;
};

}  // namespace tie::controller
