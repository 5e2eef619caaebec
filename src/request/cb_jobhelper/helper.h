// The process around a Session: starts warm, then one poll loop over its three connections until the request has ended.
// Called by main, and by tests over socket pairs. Threads: one. Source: ARCHITECTURE.md, "One request".
#pragma once
#include <functional>
#include <string>

#include "os/fd.h"
#include "request/cb_jobhelper/session.h"

namespace tie::request::jobhelper {

struct Connections {
  os::Fd cloudboard;  // framed FromHelper / ToHelper
  os::Fd app;         // framed ToApp / FromApp
  os::Fd keys;        // framed DecapRequest / DecapReply
  os::Fd spend;       // framed SpendRequest / SpendReply; invalid while tokens are off
};

// Connects to the app's and the keys' sockets, to token_spentd's when one is named, and waits until the app is warm.
// kDeadline, kIo.
Result<Connections> connect_warm(os::Fd cloudboard, const std::string& app_socket, const std::string& decap_socket,
                                 const std::string& spend_socket = "");

// Announces itself with its pidfd; after it nothing new is opened.
Result<void> announce(int cloudboard, int pidfd);

// Serves one request; a token of it is judged by `verifier`, which may use the spend connection. Returns when it has
// ended and all that was sealed is sent, or when cloudboardd is gone.
Result<void> serve(Connections connections, TokenVerifier verifier = nullptr);

}  // namespace tie::request::jobhelper
