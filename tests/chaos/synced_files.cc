// Preloaded into a program: keeps what a loss of power would leave of a folder, from what the program syncs.
//
//   CAUSEWAY_WATCHED=DIR    the folder
//   CAUSEWAY_SYNCED=DIR     files/INODE: a file as its last fdatasync or fsync began, which has returned
//                           names/%PATH, '/' as '%': a folder's entries at its last fsync, lines `INODE NAME`
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;

std::string Setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The path of the descriptor within the watched folder, "." for itself; empty: elsewhere.
std::string WatchedPath(int descriptor) {
  const std::string watched = Setting("CAUSEWAY_WATCHED");
  std::error_code error;
  const std::string path = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
  if (error || watched.empty()) return "";
  if (path == watched) return ".";
  return path.starts_with(watched + "/") ? path.substr(watched.size() + 1) : "";
}

void NoteNames(int descriptor, std::string path, const std::string& out) {
  std::replace(path.begin(), path.end(), '/', '%');
  const std::string noted = out + "/names/%" + path;
  std::ofstream names(noted + ".new");
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd/" + std::to_string(descriptor))) {
    struct stat info = {};
    if (::stat(entry.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    names << info.st_ino << " " << entry.path().filename().string() << "\n";
  }
  names.close();
  fs::rename(noted + ".new", noted);
}

int Synced(int descriptor, const char* call) {
  using Call = int (*)(int);
  const auto real = reinterpret_cast<Call>(dlsym(RTLD_NEXT, call));
  const std::string path = WatchedPath(descriptor), out = Setting("CAUSEWAY_SYNCED");
  if (path.empty()) return real(descriptor);
  struct stat info = {};
  ::fstat(descriptor, &info);
  if (S_ISDIR(info.st_mode)) {
    NoteNames(descriptor, path, out);
    return real(descriptor);
  }
  const std::string copy = out + "/files/" + std::to_string(info.st_ino);
  const std::string begun = copy + "." + std::to_string(::gettid());
  fs::copy_file("/proc/self/fd/" + std::to_string(descriptor), begun, fs::copy_options::overwrite_existing);
  const int result = real(descriptor);
  if (result == 0) fs::rename(begun, copy);
  return result;
}

}  // namespace

extern "C" {
int fdatasync(int descriptor) { return Synced(descriptor, "fdatasync"); }
int fsync(int descriptor) { return Synced(descriptor, "fsync"); }
}
