#include "tools/processors.h"

#include <sched.h>

#include <fstream>

namespace heddle::tools {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

Status keep_to(int count) {
  cpu_set_t all, some;
  CPU_ZERO(&all);
  CPU_ZERO(&some);
  if (sched_getaffinity(0, sizeof all, &all) != 0 || count > CPU_COUNT(&all))
    return error(Code::invalid_value, "{} threads; 1 to {} are allowed here", count,
                 usable_processors());
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&some) < count; ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &some);
  if (sched_setaffinity(0, sizeof some, &some) != 0)
    return error(Code::io_failed, "the process cannot be kept to {} processors", count);
  return Status();
}

}  // namespace heddle::tools
