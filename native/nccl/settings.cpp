#include "nccl/settings.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "nccl/log.h"

namespace ferrule::nccl {
namespace {

constexpr std::size_t kMinKeyBytes = 16;
constexpr int kMaxSockets = 16;
constexpr double kMinSilence = 0.05;
constexpr double kMaxSeconds = 86400;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse(const char* name, const std::string& value, const std::string& wanted) {
  throw Error(kInvalidUsage, std::string(name) + "=" + value + " is no " + wanted);
}

// In seconds; nothing where it is not set.
bool read_seconds(const char* name, double least, Clock::duration& into) {
  const std::string text = variable(name);
  if (text.empty()) return false;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  const bool number = end == text.c_str() + text.size() && std::isfinite(seconds);
  if (!number || seconds > kMaxSeconds || (seconds < least && seconds != 0)) {
    refuse(name, text, "number of seconds");
  }
  into = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  return true;
}

int read_number(const char* name, int most) {
  const std::string text = variable(name);
  if (text.empty() || text == "auto") return 0;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1 || number > most) {
    refuse(name, text, "number from 1 to " + std::to_string(most));
  }
  return number;
}

std::vector<std::byte> read_key() {
  const std::string text = variable("FERRULE_KEY");
  std::vector<std::byte> key;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc{} || end != text.data() + i + 2) break;
    key.push_back(static_cast<std::byte>(value));
  }
  // It is a secret: the message does not repeat it.
  if (!text.empty() && (key.size() * 2 != text.size() || key.size() < kMinKeyBytes)) {
    throw Error(kInvalidUsage,
                "FERRULE_KEY is not the cluster's key: at least 32 hexadecimal digits, for example from "
                "`openssl rand -hex 32`");
  }
  return key;
}

Choice read_transport() {
  const std::string text = variable("FERRULE_TRANSPORT");
  if (text.empty() || text == "auto") return Choice::automatic;
  if (text == "shm") return Choice::shm;
  if (text == "tcp") return Choice::tcp;
  if (text == "verbs") {
    throw Error(kInvalidUsage,
                "FERRULE_TRANSPORT=verbs is not for this plugin: NCCL uses RDMA adapters by itself, "
                "with NCCL_NET=IB and without NCCL_NET_PLUGIN");
  }
  refuse("FERRULE_TRANSPORT", text, "transport; choose auto, shm or tcp");
}

std::vector<std::string> read_names() {
  std::vector<std::string> names;
  std::istringstream text(variable("FERRULE_INTERFACES"));
  for (std::string name; std::getline(text, name, ',');) {
    std::erase(name, ' ');
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

}  // namespace

Settings Settings::read() {
  if (variable("FERRULE_ENCRYPT") == "1") {
    throw Error(kInvalidUsage,
                "FERRULE_ENCRYPT=1 asks for encryption, which this plugin does not have: leave it out, "
                "or NCCL_NET_PLUGIN");
  }
  Settings settings;
  settings.key = read_key();
  settings.interfaces = read_names();
  settings.sockets = std::max(1, read_number("FERRULE_RAILS", kMaxSockets));
  settings.transport = read_transport();
  (void)read_seconds("FERRULE_HEARTBEAT", kMinSilence, settings.silence);
  if (read_seconds("FERRULE_TIMEOUT", 0.001, settings.timeout) && settings.timeout == Clock::duration::zero()) {
    refuse("FERRULE_TIMEOUT", "0", "number of seconds above 0");
  }
  settings.speed = read_number("FERRULE_NCCL_SPEED", 100'000'000);
  settings.host = variable("FERRULE_HOST_ID");
  return settings;
}

}  // namespace ferrule::nccl
