// Stands in for EXLA's libxla_extension.so: a library that Erlang loads as a driver, whose XLA
// takes registrations once each, as XLA's own does, and tells them to whoever writes to a port of
// it.
#include <erl_driver.h>

#include <set>
#include <string>

#include "api/xla_ffi.h"

using namespace heddle::api::xla;

namespace {

std::set<std::string> registered;

Error* register_handler(HandlerRegisterArgs* args) {
  const std::string name = std::string(args->name.data, args->name.size) + " for " +
                           std::string(args->platform.data, args->platform.size);
  const bool is_new = args->bundle.execute && registered.insert(name).second;
  return is_new ? nullptr : reinterpret_cast<Error*>(&registered);
}

const Api api = [] {
  Api made{};
  made.header.struct_size = sizeof(Api);
  made.api_version.minor = 1;
  made.handler_register = register_handler;
  return made;
}();

ErlDrvPort the_port;
ErlDrvData start(ErlDrvPort port, char*) {
  the_port = port;
  return nullptr;
}

void tell(ErlDrvData, char*, ErlDrvSizeT) {
  std::string all;
  for (const std::string& name : registered) all += name + "\n";
  driver_output(the_port, all.data(), all.size());
}

ErlDrvEntry entry;

}  // namespace

extern "C" {

const Api* XLA_FFI_GetApi() { return &api; }

DRIVER_INIT(libxla_extension) {
  entry.driver_name = const_cast<char*>("libxla_extension");
  entry.start = start;
  entry.output = tell;
  entry.extended_marker = ERL_DRV_EXTENDED_MARKER;
  entry.major_version = ERL_DRV_EXTENDED_MAJOR_VERSION;
  entry.minor_version = ERL_DRV_EXTENDED_MINOR_VERSION;
  return &entry;
}
}
