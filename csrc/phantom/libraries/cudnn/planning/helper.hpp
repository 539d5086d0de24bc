// A cuDNN in a process of its own. Two of them cannot share a process, for their libraries have the same names; and
// what a question does to its process is not the training's business (9.8 ends it where cuBLASLt is missing, 9.20
// complains on standard error about functions that the phantom's driver lacks).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "libraries/cudnn/planning/protocol.hpp"

namespace xmem::phantom::cudnn {

class Helper {
 public:
  // Starts a process with the library of that path; version() is 0, and failure() says why, when it does not come up.
  explicit Helper(const std::string& library);

  int version() const { return version_; }
  const std::string& failure() const { return failure_; }

  // The graph API; see cudnn_planner.hpp.
  int create(int type, void** descriptor);
  int destroy(void* descriptor);
  int set(void* descriptor, int attribute, int type, std::int64_t count, const void* elements);
  int get(void* descriptor, int attribute, int type, std::int64_t room, std::int64_t* count, void* elements);
  int finalize(void* descriptor);
  std::string last_error();

  // A handle for a device that is only described, to be set like a descriptor; null when the library does not heed it.
  void* handle(const std::string& description);

  // What cudnnGetRNNTempSpaceSizes says for the device of the query; false when it says nothing.
  bool rnn_sizes(const RnnQuery& query, const std::int32_t* lengths, RnnSizes* sizes);

 private:
  void start(const std::string& library);
  void tell(const Request& request, const void* payload);
  Reply ask(const Request& request, const void* payload, std::string* answer);
  bool send_all();
  bool receive(void* bytes, std::size_t size);

  std::mutex mutex_;
  int socket_ = -1;
  int owner_ = 0;        // the process that may talk: a fork shares the socket
  std::string waiting_;  // requests that are sent with the next question
  std::uint64_t descriptors_ = 0;
  int version_ = 0;
  std::string failure_;
};

}  // namespace xmem::phantom::cudnn
