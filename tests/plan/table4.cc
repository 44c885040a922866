// Prints Table 4 of the Streaming DiLoCo paper (arXiv 2501.18512) as its simulator, built again here, has it: Gbit/s as
// the paper rounds them, "more" beyond its grid.
#include <cstdio>

#include "tests/plan/utilization_model.h"

int main() {
  using namespace causeway::plan;
  std::printf("Gbit/s to reach a compute utilization (H = 100, 3 layers a fragment, overlap of 1 step).\n\n");
  std::printf("%-6s%8s%8s  %-24s", "model", "layers", "step s", "method");
  for (const double utilization : kTable4Utilizations) std::printf("%7.0f%%", 100 * utilization);
  for (const UtilizationModelSize& model : kTable4Models) {
    for (const ReductionMethod method : kAllReductionMethods) {
      std::printf("\n%-6s%8d%8.1f  %-24s", model.name, model.layers, model.step_s, ReductionMethodName(method));
      for (const double utilization : kTable4Utilizations) {
        const auto gbit = LeastBandwidthGbit({model.parameters, model.layers, model.step_s, method}, utilization);
        std::printf("%8s", gbit ? PaperGbit(*gbit).c_str() : "more");
      }
    }
  }
  std::printf("\n");
}
