// A build without the connection manager's header: it has no iWARP.
#include <stdexcept>

#include "transports/verbs/verbs_connector.h"

namespace ferrule {

std::shared_ptr<VerbsConnector> make_managed_connector(const ferrule_verbs_options&) {
  throw std::runtime_error("this Ferrule was built without iWARP; install librdmacm-dev and build it again");
}

}  // namespace ferrule
