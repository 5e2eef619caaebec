// cloudboardd's two gRPC services as thin shells over a Node: the public one (CloudBoard) and the inside one
// (CloudBoardControl). gRPC stays out of this header. The services must live until their servers have shut down.
#pragma once
#include <functional>
#include <memory>

#include "request/cloudboardd/node.h"

namespace grpc {
class Service;
}

namespace tie::request::cloudboard {

class Services {
 public:
  virtual ~Services() = default;
  virtual grpc::Service* public_service() = 0;
  virtual grpc::Service* control_service() = 0;
  // What the node tells; `serving` goes to the health service that the server owns.
  virtual NodeListener listener(std::function<void(bool)> serving) = 0;
};

std::unique_ptr<Services> make_services(EventLoop& loop, Node& node);

}  // namespace tie::request::cloudboard
