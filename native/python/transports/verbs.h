// RDMA for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "ferrule/ferrule.h"

// One end of a queue pair while it is brought up; a channel takes it over.
class PyVerbsEndpoint {
 public:
  PyVerbsEndpoint(const std::string& device, int port, int gid_index, const std::string& type, int stream,
                  const std::string& address, bool listens);
  PyVerbsEndpoint(const PyVerbsEndpoint&) = delete;
  PyVerbsEndpoint& operator=(const PyVerbsEndpoint&) = delete;
  ~PyVerbsEndpoint() { close(); }

  nanobind::bytes local() const;
  void join(const nanobind::bytes& other, double timeout);
  void prove(double timeout);
  void close();
  ferrule_verbs_endpoint* release() { return std::exchange(endpoint_, nullptr); }

 private:
  ferrule_verbs_endpoint* get() const;

  ferrule_verbs_endpoint* endpoint_ = nullptr;
};

void bind_verbs(nanobind::module_& module);
