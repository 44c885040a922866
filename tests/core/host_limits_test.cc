#include "core/host_limits.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/formats/temporary_folder.h"

namespace causeway::core {
namespace {

// A root with files of the proc and cgroup file systems.
class Root {
 public:
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    folder_.Write(path, text);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(HostLimits, AreTheLeastOfAllGroupsAbove) {
  const Root root;
  root.Write("proc/self/cgroup", "0::/site/worker\n");
  root.Write("sys/fs/cgroup/site/worker/cpu.max", "max 100000\n");
  root.Write("sys/fs/cgroup/site/cpu.max", "150000 100000\n");
  root.Write("sys/fs/cgroup/site/worker/memory.max", "5000\n");
  root.Write("sys/fs/cgroup/site/worker/memory.current", "4500\n");
  root.Write("sys/fs/cgroup/site/worker/memory.stat", "anon 1000\ninactive_file 700\n");
  root.Write("sys/fs/cgroup/site/memory.max", "max\n");
  root.Write("sys/fs/cgroup/site/worker/pids.max", "max\n");
  root.Write("sys/fs/cgroup/site/worker/pids.current", "8\n");
  root.Write("sys/fs/cgroup/site/pids.max", "100\n");
  root.Write("sys/fs/cgroup/site/pids.current", "70\n");
  const GroupLimits limits = ReadGroupLimits(root.path());
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory_bytes, 1200);
  EXPECT_EQ(limits.threads, 30);
  EXPECT_EQ(limits.threads_file, root.path() + "/sys/fs/cgroup/site/pids.max");
}

TEST(HostLimits, InAContainerTheFoldersBeginAtItsOwnGroup) {
  const Root root;
  root.Write("proc/self/cgroup", "0::/docker/0123456789\n");
  root.Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(ReadGroupLimits(root.path()).cores, 0.5);
}

TEST(HostLimits, OfVersion1) {
  const Root root;
  root.Write("proc/self/cgroup", "7:cpuacct,cpu:/site\n4:memory:/site\n1:name=systemd:/\n");
  root.Write("sys/fs/cgroup/cpu/site/cpu.cfs_quota_us", "400000\n");
  root.Write("sys/fs/cgroup/cpu/site/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/memory/site/memory.limit_in_bytes", "9000\n");
  root.Write("sys/fs/cgroup/memory/site/memory.usage_in_bytes", "2000\n");
  const GroupLimits limits = ReadGroupLimits(root.path());
  EXPECT_EQ(limits.cores, 4);
  EXPECT_EQ(limits.memory_bytes, 7000);
}

TEST(HostLimits, MissingFilesLimitNothing) {
  const Root root;
  EXPECT_EQ(ReadGroupLimits(root.path()).cores, std::numeric_limits<double>::infinity());
  EXPECT_EQ(UsableMemoryBytes(root.path()), std::numeric_limits<int64_t>::max());
  root.Write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   10 kB\n");
  EXPECT_EQ(UsableMemoryBytes(root.path()), 10240);
}

TEST(HostLimits, OfThisMachineArePossible) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_GT(UsableMemoryBytes(), int64_t{1} << 20);
}

}  // namespace
}  // namespace causeway::core
