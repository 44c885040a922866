// The sites of a run as this life of the coordinator knows them: the control stream of each, and facts for the status.
// In bytewise order of their names. One owner at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "causeway/v1/coordinator.pb.h"
#include "core/ids.h"
#include "core/membership.h"
#include "core/progress.h"
#include "server/run/ready.h"
#include "server/status/status_snapshot.h"
#include "transport/link_meter.h"

namespace causeway::server {

inline constexpr int64_t kComplaintMs = 60'000;  // how long a complaint is shown

// All fields but the session are of this life of the coordinator.
struct Member {
  struct Complaint {
    int64_t last_ms = 0;
    int64_t noted_ms = 0;  // when it was last noted in the history
    std::string why;
  };

  core::SessionId session;
  std::shared_ptr<const core::Progress> progress = std::make_shared<core::Progress>();
  std::shared_ptr<SiteMeters> meters = std::make_shared<SiteMeters>();
  double merged_weight = 0;          // the sum over all rounds, each of weight 1
  std::optional<int64_t> joined_ms;  // when the site first joined
  std::optional<int64_t> silent_ms;  // when its control stream broke
  int64_t joining_ms = 0;            // when its present stay, or the coordinator's life, began
  std::optional<SiteStatus::Merged> last_merged;
  std::optional<SiteStatus::Missed> missed;
  core::Version staleness = 0;
  SiteStatus::Norm norm;
  std::optional<Complaint> flood, rival;
};

class Members {
 public:
  Member& operator[](const core::SiteId& site) { return sites_[site].member; }
  Member* Find(const core::SiteId& site);
  const Member* Find(const core::SiteId& site) const;
  void Erase(const core::SiteId& site);

  core::SiteId SiteOf(const SitePeer* peer) const;  // the site of the stream; "": no site's, or no longer one
  // The site's stream from now on; an earlier one ends. `resumed`: the session goes on.
  void Join(const core::SiteId& site, const core::SessionId& session, const std::shared_ptr<SitePeer>& peer,
            bool resumed, int64_t now_ms, Ready& ready);
  void Silent(const core::SiteId& site, int64_t now_ms);  // its stream broke
  void Drop(const core::SiteId& site, Ready& ready);      // it is out of the run
  // Ends the site's stream, or all, once the Ready is durable; messages do not reach it from now on.
  void Close(const core::SiteId& site, Ready& ready);
  void CloseAll(Ready& ready);

  // Sends the message once the Ready is durable. A site without a stream hears nothing.
  void Send(const core::SiteId& site, const v1::CoordinatorMessage& message, Ready& ready);
  void SendToAll(const v1::CoordinatorMessage& message, Ready& ready);

  void Restore(const core::RoundState& state, int64_t now_ms);
  void Sample(int64_t now_ms) const;  // samples the meters
  // A stream of the site was ended because it exceeded a limit, or another process was refused its place. True if that
  // is to be noted, once a minute.
  bool Complain(const core::SiteId& site, std::optional<Member::Complaint> Member::*about, const std::string& why,
                int64_t now_ms);

 private:
  struct Site {
    Member member;
    std::shared_ptr<SitePeer> peer;
  };

  std::shared_ptr<SitePeer> TakePeer(Site& site);
  void Detach(const core::SiteId& site);

  std::map<core::SiteId, Site> sites_;
  std::unordered_map<const SitePeer*, core::SiteId> site_of_peer_;
};

}  // namespace causeway::server
