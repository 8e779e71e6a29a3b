// Plays NCCL's part against the plugin, in two processes: all versions of its tables, random messages over several
// comms, and what must be an error and no hang.
//
//     conformance PLUGIN                       the quick cases
//     conformance PLUGIN --traffic OPERATIONS  messages alone; further options below, for two hosts of a lab
#include <cstdlib>

#include "nccl/traffic.h"

namespace {

using namespace nccl_test;

constexpr int kNewest = 12;
const char* plugin = nullptr;

void set(const char* name, const char* value) {
  if (value == nullptr) {
    ::unsetenv(name);
  } else {
    ::setenv(name, value, 1);
  }
}

constexpr const char* kKey = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

Result test_until(Net& net, void* request, double seconds = 20) {
  Result result = kSuccess;
  int done = 0;
  CHECK(testing::soon([&] { return (result = net.test(request, &done, nullptr)) != kSuccess || done == 1; }, seconds));
  return result;
}

void* begin_receive(Net& net, const Way& way, std::vector<char>& into, int tag = 0) {
  void* data = into.data();
  std::size_t size = into.size();
  void* request = nullptr;
  CHECK(net.receive(way.comm, 1, &data, &size, &tag, nullptr, &request) == kSuccess && request != nullptr);
  return request;
}

void* begin_send(Net& net, const Way& way, std::vector<char>& from, int tag = 0) {
  void* request = nullptr;
  Result result = kSuccess;
  CHECK(testing::soon([&] {
    result = net.send(way.comm, from.data(), from.size(), tag, nullptr, &request);
    return result != kSuccess || request != nullptr;
  }));
  CHECK(result == kSuccess);
  return request;
}

// What a version says of itself, and a few messages; all that was opened is closed again.
void versions_are_alike() {
  for (int version = 8; version <= kNewest; ++version) {
    as_two([&](int rank, Meeting& meeting, pid_t) {
      Net net(plugin, version);
      CHECK(net.init() == kSuccess);
      int count = 0;
      CHECK(net.devices(&count) == kSuccess && count == 1);
      Properties properties;
      CHECK(net.properties(properties) == kSuccess && properties.name == "ferrule");
      CHECK(properties.pointers == kPointerHost && properties.speed > 0 && properties.max_comms > 100);
      CHECK(properties.max_receives == 8);
      CHECK(!net.exports("HMAC") && !net.exports("_ZTVN7ferrule7ChannelE"));
      const auto before = resources();
      const Outcome outcome =
          run_traffic(net, meeting, rank, {.seed = static_cast<unsigned>(version), .operations = 60, .ways = 2});
      CHECK(outcome.failed == 0 && outcome.done >= 60);
      CHECK(are_again(before));
      CHECK(net.finalize() == kSuccess);
    });
  }
}

void messages_arrive(const char* transport, const Plan& plan) {
  set("FERRULE_TRANSPORT", transport);
  as_two([&](int rank, Meeting& meeting, pid_t) {
    Net net(plugin, kNewest);
    CHECK(net.init() == kSuccess);
    const auto before = resources();
    const Outcome outcome = run_traffic(net, meeting, rank, plan);
    CHECK(outcome.failed == 0 && outcome.done >= plan.operations - plan.ways);
    CHECK(are_again(before));
    CHECK(Log::warnings().empty());
  });
  set("FERRULE_TRANSPORT", nullptr);
}

// A process that talks to itself, as NCCL does to try out a device.
void a_process_reaches_itself() {
  Net net(plugin, kNewest);
  CHECK(net.init() == kSuccess);
  Handle handle{};
  void* listener = nullptr;
  void* out = nullptr;
  void* in = nullptr;
  CHECK(net.listen(0, handle.data(), &listener) == kSuccess);
  CHECK(testing::soon([&] {
    if (out == nullptr) CHECK(net.connect(0, handle.data(), &out) == kSuccess);
    if (in == nullptr) CHECK(net.accept(listener, &in) == kSuccess);
    return out != nullptr && in != nullptr;
  }));
  std::vector<char> sent(100'000, 'x');
  std::vector<char> got(100'001);
  void* const receive = begin_receive(net, {1, in}, got);
  void* const send = begin_send(net, {0, out}, sent);
  int size = 0;
  int done = 0;
  CHECK(testing::soon([&] {
    CHECK(net.test(receive, &done, &size) == kSuccess);
    return done == 1;
  }));
  CHECK(size == 100'000 && std::equal(sent.begin(), sent.end(), got.begin()));
  CHECK(test_until(net, send) == kSuccess);
  CHECK(net.close_send(out) == kSuccess && net.close_receive(in) == kSuccess && net.close_listen(listener) == kSuccess);
}

// No send before its receive, none for a tag that is not next, and none that is too long for its place.
void sends_wait_for_their_receives(const char* transport) {
  set("FERRULE_TRANSPORT", transport);
  as_two([](int rank, Meeting& meeting, pid_t) {
    Net net(plugin, kNewest);
    CHECK(net.init() == kSuccess);
    Way way{0};
    join(net, meeting, rank, way);
    std::vector<char> a(10, 'a');
    std::vector<char> b(20, 'b');
    if (rank == 0) {
      void* request = &way;
      CHECK(net.send(way.comm, a.data(), a.size(), 5, nullptr, &request) == kSuccess && request == nullptr);
      meeting.barrier();
      void* const second = begin_send(net, way, b, 6);
      // The group waits for tag 5 alone, though the next one has a 6 as well.
      CHECK(net.send(way.comm, b.data(), b.size(), 6, nullptr, &request) == kSuccess && request == nullptr);
      std::vector<char> longer(11, 'c');
      CHECK(net.send(way.comm, longer.data(), longer.size(), 5, nullptr, &request) == kInvalidUsage);
      void* const first = begin_send(net, way, a, 5);
      CHECK(test_until(net, first) == kSuccess && test_until(net, second) == kSuccess);
      CHECK(test_until(net, begin_send(net, way, a, 6)) == kSuccess);
    } else {
      void* memory = nullptr;
      CHECK(net.register_memory(way.comm, a.data(), a.size(), 2, &memory) == kInvalidUsage);  // of a GPU
      meeting.barrier();
      std::vector<char> into[3] = {std::vector<char>(10), std::vector<char>(30), std::vector<char>(10)};
      void* data[] = {into[0].data(), into[1].data()};
      std::size_t room[] = {10, 30};
      int tags[] = {5, 6};
      void* group = nullptr;
      CHECK(net.receive(way.comm, 2, data, room, tags, nullptr, &group) == kSuccess && group != nullptr);
      void* const next = begin_receive(net, way, into[2], 6);
      int done = 0;
      int sizes[] = {-1, -1};
      CHECK(testing::soon([&] {
        CHECK(net.test(group, &done, sizes) == kSuccess);
        return done == 1;
      }));
      CHECK(sizes[0] == 10 && sizes[1] == 20 && into[0] == a && into[1][19] == 'b');
      CHECK(test_until(net, next) == kSuccess && into[2] == a);
      // As many requests as NCCL may have open, and no more.
      std::vector<void*> open;
      for (int i = 0; i < kMaxRequests; ++i) open.push_back(begin_receive(net, way, into[0]));
      void* one_more = &way;
      void* place = into[0].data();
      CHECK(net.receive(way.comm, 1, &place, room, tags, nullptr, &one_more) == kSuccess && one_more == nullptr);
    }
    meeting.barrier();
    leave(net, rank, way);
  });
  set("FERRULE_TRANSPORT", nullptr);
}

// Rank 1 closes, dies or stops in the middle, or gives memory up that is in use: what is under way here is an error,
// soon.
enum class Fault { closes, dies, stops, frees };

// Rank 1's part. With `sends` rank 0 sends.
void do_wrong(Net& net, Meeting& meeting, Way& way, Fault fault, bool sends) {
  std::vector<char> data(16 << 20, 'x');  // longer than what can be on its way
  void* memory = nullptr;
  CHECK(net.register_memory(way.comm, data.data(), data.size(), kPointerHost, &memory) == kSuccess);
  std::vector<void*> receives;
  for (int i = 0; sends && i < kMaxRequests; ++i) receives.push_back(begin_receive(net, way, data));
  meeting.barrier();
  if (fault == Fault::frees) {
    void* const request = sends ? receives.back() : begin_send(net, way, data);
    CHECK(net.unregister(way.comm, memory) == kSuccess);
    CHECK(test_until(net, request) == kRemoteError);
    CHECK(Log::warned("memory was deregistered"));
  }
  if (fault == Fault::closes || fault == Fault::frees) leave(net, 1, way);
  CHECK(meeting.hear<char>() == 'd');  // where it is not killed before
}

void faults_are_errors(const char* transport, Fault fault, bool sends) {
  set("FERRULE_TRANSPORT", transport);
  as_two([&](int rank, Meeting& meeting, pid_t child) {
    Net net(plugin, kNewest);
    CHECK(net.init() == kSuccess);
    Way way{sends ? 0 : 1};
    join(net, meeting, rank, way);
    if (rank == 1) return do_wrong(net, meeting, way, fault, sends);
    std::vector<char> data(16 << 20, 'x');
    void* request = sends ? nullptr : begin_receive(net, way, data);
    meeting.barrier();
    if (fault == Fault::dies) ::kill(child, SIGKILL);
    if (fault == Fault::stops) ::kill(child, SIGSTOP);
    // As many sends as the other end takes; the one receive waits.
    Result result = kSuccess;
    CHECK(testing::soon([&] {
      int done = 0;
      if (request == nullptr) result = net.send(way.comm, data.data(), data.size(), 0, nullptr, &request);
      if (request != nullptr) result = net.test(request, &done, nullptr);
      CHECK(sends || done == 0);
      if (done == 1) request = nullptr;
      return result != kSuccess;
    }));
    CHECK(result == kRemoteError && Log::warned("the process at 127.0.0.1"));
    leave(net, rank, way);
    if (fault == Fault::dies || fault == Fault::stops) {
      ::kill(child, SIGKILL);
    } else {
      meeting.tell('d');
    }
  });
  set("FERRULE_TRANSPORT", nullptr);
}

// Only who has the key is let in; without one there is loopback alone.
void strangers_are_refused() {
  set("FERRULE_INTERFACES", "lo");
  as_two([](int rank, Meeting& meeting, pid_t) {
    std::string key = kKey;
    if (rank == 0) key[0] = 'f';
    set("FERRULE_KEY", key.c_str());
    Net net(plugin, kNewest);
    CHECK(net.init() == kSuccess);
    Way way{0};
    CHECK(try_join(net, meeting, rank, way) == kRemoteError);
    CHECK(testing::soon([] { return Log::warned("FERRULE_KEY"); }));
    Way again{1};
    CHECK(try_join(net, meeting, rank, again) == kRemoteError);
    meeting.barrier();
  });
  set("FERRULE_KEY", kKey);
  messages_arrive("tcp", {.seed = 3, .operations = 40, .ways = 2});
  set("FERRULE_KEY", nullptr);
  set("FERRULE_INTERFACES", nullptr);
  Net net(plugin, kNewest);  // its settings are read once: here for the first time in this process
  CHECK(net.init() == kSuccess);
  Handle foreign{};
  void* listener = nullptr;
  CHECK(net.listen(0, foreign.data(), &listener) == kSuccess);
  foreign[68] = 10;  // an address of another host, see Handle in native/nccl/join/wire.h
  void* comm = nullptr;
  Result result = kSuccess;
  CHECK(testing::soon([&] { return (result = net.connect(0, foreign.data(), &comm)) != kSuccess; }));
  CHECK(result == kInvalidUsage && Log::warned("FERRULE_KEY is not set"));
  CHECK(net.close_listen(listener) == kSuccess);
}

// Settings that make no sense are refused by init, and the message names them.
void settings_are_checked() {
  constexpr std::pair<const char*, const char*> kWrong[] = {
      {"FERRULE_KEY", "abc"},        {"FERRULE_HEARTBEAT", "soon"}, {"FERRULE_RAILS", "17"},
      {"FERRULE_TRANSPORT", "mail"}, {"FERRULE_ENCRYPT", "1"},      {"FERRULE_INTERFACES", "nonesuch7"},
      {"FERRULE_TIMEOUT", "0"},      {"FERRULE_TRANSPORT", "verbs"}};
  for (const auto& [name, value] : kWrong) {
    set(name, value);
    Net net(plugin, kNewest);
    CHECK(net.init() == kInvalidUsage);
    CHECK(Log::warned(name) && !Log::warned("abc"));
    set(name, nullptr);
  }
}

int traffic(int argc, char** argv) {
  Plan plan;
  plan.ways = 8;
  plan.announce = true;
  plan.operations = std::atoi(argv[3]);
  int rank = -1;
  int version = kNewest;
  const char* place = nullptr;
  for (int i = 4; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* const value = argv[i + 1];
    if (name == "--rank") rank = std::atoi(value);
    if (name == "--meet") place = value;
    if (name == "--version") version = std::atoi(value);
    if (name == "--seed") plan.seed = static_cast<unsigned>(std::atoi(value));
    if (name == "--comms") plan.ways = std::atoi(value);
    if (name == "--huge") plan.huge = static_cast<std::size_t>(std::atoll(value));
    if (name == "--deadline") plan.deadline = std::atof(value);
    if (name == "--may-fail") plan.may_fail = std::atoi(value) != 0;
  }
  const auto body = [&](int own, Meeting& meeting, pid_t) {
    Net net(plugin, version);
    CHECK(net.init() == kSuccess);
    const auto before = resources();
    const Outcome outcome = run_traffic(net, meeting, own, plan);
    CHECK(are_again(before));
    std::printf("{\"rank\": %d, \"done\": %d, \"failed\": %d, \"longest\": %.3f}\n", own, outcome.done, outcome.failed,
                outcome.longest);
  };
  if (place == nullptr) {
    as_two(body);
    return 0;
  }
  Meeting meeting(meet_at(place, rank));
  body(rank, meeting, -1);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) testing::fail(__FILE__, __LINE__, "give the path of the plugin");
  plugin = argv[1];
  for (const char* const name : {"FERRULE_KEY", "FERRULE_TRANSPORT", "FERRULE_ENCRYPT"}) {
    if (argc == 2) set(name, nullptr);
  }
  if (argc > 3) return traffic(argc, argv);
  as_two([](int rank, Meeting&, pid_t) {
    if (rank == 1) settings_are_checked();
  });
  versions_are_alike();
  messages_arrive("shm", {.seed = 1, .operations = 600, .huge = 8 << 20});
  messages_arrive("tcp", {.seed = 2, .operations = 600, .huge = 8 << 20});
  for (const char* const transport : {"shm", "tcp"}) {
    sends_wait_for_their_receives(transport);
    for (const Fault fault : {Fault::closes, Fault::dies, Fault::stops, Fault::frees}) {
      for (const bool sends : {false, true}) faults_are_errors(transport, fault, sends);
    }
  }
  strangers_are_refused();
  a_process_reaches_itself();
  return 0;
}
