#include "testing.hpp"

int main() {
  return xmem::testing::run_all();
}
