#include "tests/plan/utilization_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/folders.h"

namespace causeway::plan {
namespace {

struct PublishedRow {
  UtilizationCase that;
  std::string text;
  std::vector<std::string> cells;
};

std::vector<PublishedRow> ReadTable4() {
  std::ifstream file(InSource("tests/plan/data/streaming_diloco_table4.csv"));
  std::vector<PublishedRow> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.starts_with("model,")) continue;
    std::istringstream fields(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(fields, cell, ',');) cells.push_back(cell);
    rows.push_back({{std::stod(cells[1]), std::stoi(cells[2]), std::stod(cells[3]), *ReductionMethodFromName(cells[4])},
                    line,
                    {cells.begin() + 5, cells.end()}});
  }
  return rows;
}

int GridStep(double gbit) {
  const auto& grid = BandwidthGrid();
  const auto nearest =
      std::ranges::min_element(grid, {}, [&](double point) { return std::abs(std::log(point) - std::log(gbit)); });
  return static_cast<int>(nearest - grid.begin());
}

TEST(UtilizationModel, Table4OfTheStreamingDilocoPaperIsReproduced) {
  int cells = 0, exact = 0;
  for (const PublishedRow& row : ReadTable4()) {
    ASSERT_EQ(row.cells.size(), std::size(kTable4Utilizations));
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const std::optional<double> gbit = LeastBandwidthGbit(row.that, kTable4Utilizations[i]);
      ASSERT_TRUE(gbit.has_value()) << row.text;
      ++cells;
      exact += PaperGbit(*gbit) == row.cells[i];
      EXPECT_LE(std::abs(GridStep(*gbit) - GridStep(std::stod(row.cells[i]))), 1)
          << row.text << ": at " << kTable4Utilizations[i] << " got " << PaperGbit(*gbit);
    }
  }
  EXPECT_EQ(cells, 75);
  EXPECT_GE(exact, 70);
}

TEST(UtilizationModel, ItsCasesAreThoseOfTheTable) {
  const std::vector<PublishedRow> rows = ReadTable4();
  size_t i = 0;
  for (const UtilizationModelSize& model : kTable4Models) {
    for (ReductionMethod method : kAllReductionMethods) {
      ASSERT_LT(i, rows.size());
      EXPECT_EQ(model.parameters, rows[i].that.parameters);
      EXPECT_EQ(model.layers, rows[i].that.layers);
      EXPECT_EQ(model.step_s, rows[i].that.step_s);
      EXPECT_EQ(method, rows[i].that.method);
      ++i;
    }
  }
  EXPECT_EQ(i, rows.size());
}

// One layer, one step long thirds, nothing overlaps: wall = step + reduction.
TEST(UtilizationModel, DataParallelOfOneLayerWaitsForEachReduction) {
  const UtilizationCase that{.parameters = 1e9 / 0.84, .layers = 1, .step_s = 1};
  EXPECT_NEAR(ComputeUtilization(that, 16), 0.5, 1e-12);
  EXPECT_NEAR(ComputeUtilization(that, 48), 0.75, 1e-12);
}

TEST(UtilizationModel, DilocoWaitsForAllLayersOnceInHSteps) {
  const UtilizationCase that{
      .parameters = 1e9 / 0.84, .layers = 1, .step_s = 1, .method = ReductionMethod::kDiloco, .sync_every = 10};
  EXPECT_NEAR(ComputeUtilization(that, 1.6), 0.5, 1e-12);
}

TEST(UtilizationModel, MoreBandwidthNeverComputesLess) {
  for (ReductionMethod method : kAllReductionMethods) {
    const UtilizationCase that{.parameters = 1e9, .layers = 24, .step_s = 0.1, .method = method};
    double before = 0;
    for (double gbit : BandwidthGrid()) {
      const double utilization = ComputeUtilization(that, gbit);
      EXPECT_GE(utilization, before - 1e-12) << ReductionMethodName(method) << " at " << gbit;
      EXPECT_LE(utilization, 1 + 1e-12);
      before = utilization;
    }
  }
}

TEST(UtilizationModel, BandwidthIsPrintedAsInThePaper) {
  EXPECT_EQ(PaperGbit(6.2506), "6.2");
  EXPECT_EQ(PaperGbit(2.947), "3.0");
  EXPECT_EQ(PaperGbit(323.746), "323.8");
}

}  // namespace
}  // namespace causeway::plan
