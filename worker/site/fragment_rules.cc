#include "worker/site/fragment_rules.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

using core::Version;

template <typename State>
struct Transition {
  State from;
  State to;
};

using enum Outgoing;
constexpr Transition<Outgoing> kOutgoing[] = {
    {Outgoing::kNone, kDue},     {Outgoing::kNone, kCopying}, {kDue, Outgoing::kNone}, {kDue, kCopying},
    {kCopying, kEncoding},       {kEncoding, kSending},       {kSending, kAdmitted},   {kCopying, Outgoing::kNone},
    {kSending, Outgoing::kNone}, {kAdmitted, Outgoing::kNone}};

using In = Incoming;
constexpr Transition<Incoming> kIncoming[] = {
    {In::kNone, In::kAnchoring},    {In::kAwaiting, In::kAnchoring}, {In::kAnchoring, In::kAnchoring},
    {In::kAnchoring, In::kPlacing}, {In::kPlacing, In::kStaged},     {In::kPlacing, In::kAwaiting},
    {In::kStaged, In::kAwaiting},   {In::kStaged, In::kNone},        {In::kAwaiting, In::kArrived},
    {In::kArrived, In::kAwaiting},  {In::kArrived, In::kTaking},     {In::kTaking, In::kTaken},
    {In::kTaken, In::kMoving},      {In::kTaken, In::kAwaiting},     {In::kMoving, In::kAwaiting},
    {In::kAnchoring, In::kNone},    {In::kPlacing, In::kNone},       {In::kAwaiting, In::kNone},
    {In::kArrived, In::kNone},      {In::kTaken, In::kNone},         {In::kMoving, In::kNone}};

template <typename State>
bool Holds(std::span<const Transition<State>> table, State from, State to) {
  return std::ranges::any_of(table, [&](const Transition<State>& row) { return row.from == from && row.to == to; });
}

constexpr int64_t kAskAgainUs = 5'000'000;

}  // namespace

const char* OutgoingName(Outgoing outgoing) {
  switch (outgoing) {
    case Outgoing::kNone: return "none";
    case kDue: return "due";
    case kCopying: return "copying";
    case kEncoding: return "encoding";
    case kSending: return "sending";
    case kAdmitted: return "waiting";
  }
  return "?";
}

const char* IncomingName(Incoming incoming) {
  switch (incoming) {
    case In::kNone: return "none";
    case In::kAnchoring: return "anchoring";
    case In::kPlacing: return "placing";
    case In::kStaged: return "staged";
    case In::kAwaiting: return "awaiting";
    case In::kArrived: return "arrived";
    case In::kTaking: return "taking";
    case In::kTaken: return "taken";
    case In::kMoving: return "moving";
  }
  return "?";
}

FragmentRules::FragmentRules(core::FragmentId id, const FragmentFacts& facts)
    : id_(id), facts_(facts), keeps_local_(true) {
  if (facts_.sent) outgoing_ = facts_.sent->admitted ? kAdmitted : kSending;
  sent_through_ = facts_.sent ? facts_.sent->base : facts_.applied - 1;
  incoming_ = facts_.applied < facts_.version ? In::kTaken : In::kAwaiting;
}

void FragmentRules::Go(Outgoing next) {
  CHECK(Holds<Outgoing>(kOutgoing, outgoing_, next));
  outgoing_ = next;
}

void FragmentRules::Go(Incoming next) {
  CHECK(Holds<Incoming>(kIncoming, incoming_, next));
  incoming_ = next;
}

bool FragmentRules::busy() const {
  return outgoing_ == kCopying || outgoing_ == kEncoding || incoming_ == In::kPlacing || incoming_ == In::kTaking;
}

bool FragmentRules::anchored() const { return incoming_ >= In::kAwaiting && !arrival_.wrong; }

// ---- Sending ----

bool FragmentRules::MayBegin() const { return facts_.version == facts_.applied && !busy() && !facts_.sent; }

void FragmentRules::Begin(const TrainedAmount& trained, int64_t now_us) {
  CHECK(MayBegin());
  Go(kCopying);
  facts_.sent = SentFacts{.base = facts_.version, .amount = trained, .weight = trained - facts_.merged_amount};
  sent_through_ = facts_.version;
  times_.sent_us = now_us;
}

action::Upload FragmentRules::Encoded(int64_t stay, int64_t welcomed) {
  if (outgoing_ != kSending) Go(kSending);
  send_ticket_ = ++tickets_;
  return ToSend(stay, welcomed);
}

action::Upload FragmentRules::ToSend(int64_t stay, int64_t welcomed) const {
  return {.tag = {stay, id_, send_ticket_}, .stay = welcomed, .base = facts_.sent->base, .weight = facts_.sent->weight};
}

bool FragmentRules::Awaits(const event::VerdictGiven& given, int64_t stay) const {
  // An update's statement about the contribution takes precedence.
  const bool resolving = incoming_ == In::kTaking && arrival_.resolves.has_value();
  return outgoing_ == kSending && given.tag == Tag{stay, id_, send_ticket_} && !resolving;
}

void FragmentRules::Admitted(int64_t now_us) {
  Go(kAdmitted);
  facts_.sent->admitted = true;
  times_.admitted_us = now_us;
}

void FragmentRules::GiveUp() {
  Go(Outgoing::kNone);
  facts_.sent.reset();
}

void FragmentRules::ChooseDelay(core::Step delay, std::string reason) {
  facts_.delay = delay;
  delay_reason_ = std::move(reason);
}

// ---- Receiving ----

Tag FragmentRules::AskForAnchor(int64_t stay) {
  Go(In::kAnchoring);
  arrival_ = {};
  times_.asked_us.reset();
  fetch_ticket_ = ++tickets_;
  return {stay, id_, fetch_ticket_};
}

void FragmentRules::Asked(const Tag& tag, int64_t now_us) {
  if (incoming_ == In::kAnchoring && tag.ticket == fetch_ticket_) times_.asked_us = now_us;
}

void FragmentRules::Began(const event::FetchBegan& began) {
  if (incoming_ == In::kAnchoring && began.tag.ticket == fetch_ticket_) times_.asked_us.reset();
}

bool FragmentRules::IsSilent(int64_t now_us) const {
  return incoming_ == In::kAnchoring && times_.asked_us && now_us - *times_.asked_us >= kAskAgainUs;
}

action::FetchUpdate FragmentRules::AskForUpdate(int64_t stay) {
  if (incoming_ != In::kAwaiting) Go(In::kAwaiting);
  fetch_ticket_ = ++tickets_;
  return {.tag = {stay, id_, fetch_ticket_}, .base = facts_.version};
}

void FragmentRules::Arrived(const event::Fetched& fetched) {
  if (incoming_ == In::kAwaiting) Go(In::kArrived);
  arrival_ = {.version = fetched.version,
              .merged = fetched.merged,
              .resolves = std::nullopt,
              .wrong = false,
              .sites = fetched.sites,
              .evaluates = fetched.evaluates,
              .begun_us = fetched.begun_us,
              .run_tokens = fetched.run_tokens};
}

action::PlaceAnchor FragmentRules::Place() {
  Go(In::kPlacing);
  // The outcome of an admitted contribution of ours is no longer tracked: it is merged, or will be.
  if (facts_.sent) {
    keeps_local_ = false;
    GiveUp();
  }
  return {.fragment = id_, .stage = keeps_local_};
}

void FragmentRules::AnchorPlaced() {
  if (arrival_.wrong) return LoseAnchor();
  Go(keeps_local_ ? In::kStaged : In::kAwaiting);
  if (keeps_local_) return;
  facts_.version = facts_.applied = arrival_.version;
  facts_.run_tokens = arrival_.run_tokens;
}

action::TakeUpdate FragmentRules::Take(bool synchronous, bool moves_theta) {
  Go(In::kTaking);
  facts_.merged = facts_.sent && arrival_.merged == facts_.sent->base;
  facts_.sites = arrival_.sites;
  if (facts_.merged || (facts_.sent && synchronous)) arrival_.resolves = facts_.merged;
  return {.fragment = id_, .keep_step = moves_theta && !facts_.merged, .resolve = arrival_.resolves};
}

void FragmentRules::Taken(bool wrong) {
  Go(In::kTaken);
  ++facts_.version;
  facts_.run_tokens = arrival_.run_tokens;
  arrival_.wrong |= wrong;
  if (!arrival_.resolves) return;
  if (facts_.merged) {
    facts_.resolved = facts_.sent->base;
    facts_.merged_amount = facts_.sent->amount;
  }
  GiveUp();
}

action::MoveTheta FragmentRules::Move() {
  using enum action::MoveTheta::How;
  if (incoming_ == In::kStaged) return {.fragment = id_, .how = kAnchor};
  Go(In::kMoving);
  return {.fragment = id_, .how = facts_.merged ? kMix : kStep};
}

void FragmentRules::Moved() {
  if (incoming_ == In::kStaged) {
    facts_.version = arrival_.version;
    facts_.run_tokens = arrival_.run_tokens;
  }
  facts_.applied = facts_.version;
  if (arrival_.wrong) return LoseAnchor();
  Go(In::kAwaiting);
}

void FragmentRules::LoseAnchor() { Go(In::kNone); }

// ---- Stays ----

void FragmentRules::Settle(Version last_admitted, SiteActions& actions) {
  if (outgoing_ == kDue) Go(Outgoing::kNone);
  const Version known = facts_.sent ? facts_.sent->base : facts_.resolved;
  if (keeps_local_ && last_admitted > known) {
    actions.push_back(
        action::Say{absl::StrCat("fragment ", id_, ": a contribution that this site does not know of (base ",
                                 last_admitted, ") was merged; starts from the anchor")});
    keeps_local_ = false;
  }
  if (!keeps_local_) {
    if (facts_.sent) GiveUp();
    actions.push_back(action::ForgetResidual{id_});
  } else if (facts_.sent && last_admitted < facts_.sent->base) {
    GiveUp();
    actions.push_back(action::Resolve{id_, /*merged=*/false});
  } else if (facts_.sent && outgoing_ == kSending) {
    Admitted(times_.sent_us);
  }
  sent_through_ = facts_.sent ? facts_.sent->base : -1;
  if (incoming_ == In::kAnchoring) Go(In::kNone);
  if (incoming_ == In::kTaken && !keeps_local_) Moved();
}

void FragmentRules::Void() {
  keeps_local_ = false;
  if (incoming_ == In::kAwaiting || incoming_ == In::kArrived) return Go(In::kNone);
  if (incoming_ != In::kNone && incoming_ != In::kAnchoring) arrival_.wrong = true;
}

void FragmentRules::EnterFromAnchor(const TrainedAmount& trained, Version last_admitted) {
  facts_.applied = facts_.version;
  facts_.merged_amount = trained;
  facts_.resolved = last_admitted;
  keeps_local_ = true;
}

// ---- Times ----

std::optional<FragmentRules::Latency> FragmentRules::NoteReady(int64_t now_us) {
  times_.ready_us = now_us;
  if (times_.sent_us == 0) return std::nullopt;
  // The verdict may come after the update, which then is not known to have waited.
  const bool admitted = times_.admitted_us > times_.sent_us;
  return Latency{.whole_s = Seconds(now_us - times_.sent_us),
                 .waited_s = admitted ? Seconds(arrival_.begun_us - times_.admitted_us) : 0};
}

void FragmentRules::NoteNeeded(int64_t now_us, double stall_s) {
  times_.slack_s = stall_s > 0 ? -stall_s : Seconds(now_us - times_.ready_us);
}

}  // namespace causeway::worker
