#include "nccl/identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <mutex>

#include "nccl/join/proof.h"

namespace ferrule::nccl {

const Id& own_process() {
  static std::mutex mutex;
  static pid_t pid = 0;
  static Id id;
  const std::scoped_lock lock(mutex);
  if (pid != ::getpid()) {
    pid = ::getpid();
    id = random_id();
  }
  return id;
}

std::uint64_t host_number(const std::string& name) {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  struct stat processes {};
  if (::stat("/proc/self/ns/pid", &processes) == 0) text += '/' + std::to_string(processes.st_ino);
  text += '/' + std::to_string(::geteuid()) + '/' + name;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

}  // namespace ferrule::nccl
