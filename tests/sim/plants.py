"""Faults that the simulator has to find: each is a change of the product's text, made in a copy of the tree.

A plant is a list of (file, what is there once, what stands there instead).
"""

PLANTS = {
    "verdict_before_it_is_durable": [
        ("server/run/uploads.cc", "  run.ready.effects.emplace_back(\n      effect::Answer{input.peer, header.context().site(), header.fragment(), std::move(verdict)});\n",
         "  input.peer->Answer(std::move(verdict));\n")],
    "merge_before_it_is_durable": [
        ("server/run/run.cc", "  run.ready.effects.emplace_back(effect::Merge{run.model.parameters(), std::move(job)});",
         "  run.model.parameters()->Merge(std::move(job));")],
    "lease_ends_while_the_coordinator_stands_still": [
        ("server/run/run.cc", "    run.rules->Handle(StoodStill{from_ms}, now_ms);\n", "")],
    "waiting_reader_is_forgotten": [  # destroyed without an answer, while its stream stays open: joining hung for ever
        ("server/run/chunk_source.cc", "Waiter::~Waiter() {\n  if (waits_) Tell(", "Waiter::~Waiter() {\n  if (false) Tell("),
        ("server/run/chunk_source.cc", "  waiter.Await();\n", "  waiter.Await();\n  waiting.clear();\n")],
    "model_is_forgotten_with_its_waiters": [  # while no site is left, before the seed: the hang of decision 15
        ("server/run/chunk_source.cc", "Waiter::~Waiter() {\n  if (waits_) Tell(", "Waiter::~Waiter() {\n  if (false) Tell("),
        ("server/run/chunk_source.cc", "  TellTaken(Take([generation](const WaitKey& key) { return key.generation < generation; }),\n"
         "            absl::AbortedError(absl::StrCat(\"the model is generation \", generation, \" now; retry\")));\n",
         "  Take([generation](const WaitKey& key) { return key.generation <= generation; });\n"),
        ("server/run/admission.cc", "  if (*map && run.model.Declare(**map, site, run.ready)) {\n",
         "  const auto other_is_in = [&](const auto& each) {\n"
         "    return each.first != site && each.second.state != core::SiteState::kGone;\n  };\n"
         "  if (*map && run.lead() != nullptr && !run.model.fact().stays() &&\n      std::ranges::none_of(run.rules->state().sites, other_is_in)) {\n"
         "    run.model.Restore(ModelFact());\n  }\n"
         "  if (*map && run.model.Declare(**map, site, run.ready)) {\n")],
    "no_waiting_reader_is_woken": [
        ("server/run/chunk_source.cc", "  TellTaken(std::move(taken), absl::OkStatus());\n}", "}"),
        ("server/run/chunk_source.cc",
         "  TellTaken(Take([fragment](const WaitKey& key) { return key.fragment == fragment; }), absl::OkStatus());",
         "  (void)fragment;")],
    "contribution_merged_twice_after_a_restart": [
        ("server/store/load.cc", "AND merged_version IS NULL ORDER BY site, base",
         "AND (merged_version IS NULL OR merged_version = (SELECT max(merged_version) FROM contributions)) "
         "ORDER BY site, base")],
    "contribution_stays_in_the_next_round": [
        # One site's of several: with all of them the round would be complete again at once, without end.
        ("server/rounds/round_rules.cc", "  facts_.state.contributions[fragment].clear();\n",
         "  auto& stays = facts_.state.contributions[fragment];\n"
         "  stays.erase(stays.size() > 1 ? std::next(stays.begin()) : stays.begin(), stays.end());\n"),
        ("server/run/uploads.cc", ".at(site).contribution;\n  open_[fragment].erase(site);\n", ".at(site).contribution;\n")],
    "residual_applied_twice": [
        ("codecs/error_feedback.cc", "  residual_ = std::move(next_residual_);\n",
         "  residual_ = std::move(next_residual_);\n  for (float& value : residual_.values()) value += value;\n")],
    "upload_of_an_earlier_stay_is_taken": [  # its chunks mix with those of the same base, of another residual
        ("server/run/uploads.cc",
         "  RETURN_IF_ERROR(CheckStay(run.rules->state(), site, header.context().stay()));\n", "  (void)CheckStay;\n")],
    "repeat_of_what_is_merged_is_refused": [
        ("server/rounds/round_rules.cc", "base >= 0 && record->second.last_merged[fragment] == base)",
         "base >= 0 && record->second.last_merged[fragment] < base)")],
    "outer_momentum_is_lost_at_a_start": [
        ("server/store/snapshots.cc", "  RETURN_IF_ERROR(read(kMomentumName, state.momentum));\n",
         "  RETURN_IF_ERROR(read(kMomentumName, state.momentum));\n"
         "  for (float& value : state.momentum) value = 0;\n")],
    "third_site_is_left_out_of_a_merge": [
        ("server/run/parameters.cc", "    inputs.push_back({contributor.site", "    if (i < 2) inputs.push_back({contributor.site")],
    "update_of_another_generation_is_taken": [
        ("transport/transfer.cc", "if (generation_ && header.generation && *header.generation != *generation_) return true;", ""),
        ("server/rounds/model_fact.cc", "absl::Status ModelFact::CheckGeneration(std::optional<uint64_t> named) const {\n",
         "absl::Status ModelFact::CheckGeneration(std::optional<uint64_t> named) const {\n"
         "  if (named.has_value() || !named.has_value()) return absl::OkStatus();\n")],
    "shard_admits_before_shard_0_says_so": [
        ("server/rounds/round_rules.cc", "  if (!core::IsActive(record.state)) {",
         "  if (!core::IsActive(record.state) && facts_.settings.shard.leads()) {")],
    "segments_are_not_synced": [
        ("server/store/segments.cc",
         '    if (::fdatasync(each.file->get()) != 0) return formats::FileError("sync", each.path);\n', "")],
    "files_are_not_synced": [
        ("formats/atomic_file.cc", "  if (::fsync(file_.get()) != 0) return FileError(\"sync\", path_);\n", "")],
    "log_is_not_synced": [
        ("server/store/log_file.cc", '  return ::fdatasync(file_->get()) == 0 ? absl::OkStatus() : formats::FileError("sync", path_);\n',
         "  return absl::OkStatus();\n")],
    "truncated_log_is_taken_for_a_torn_tail": [  # below its mark, if no payload says how far it went
        ("server/store/state_log.cc", "    if (file.torn && (!is_last || marks_.mark.sequence <= last.sequence)) return absl::OkStatus();",
         "    if (file.torn || (is_last && file.torn)) return absl::OkStatus();"),
        ("server/store/state_log.cc", "    if (marks_.mark.sequence > end().sequence && !cut_) {\n      if (!torn_at_.empty())",
         "    if (false) {\n      if (!torn_at_.empty())")],
    "retry_of_a_transfer_is_lost": [
        ("transport/transfer_queue.cc", "  pending->running = false;\n", "")],
    "step_thread_is_not_woken": [
        ("worker/site/site_exchange.cc", "Perform(action, effects);\n  changed_.NotifyAll();\n", "Perform(action, effects);\n")],
    "welcome_forgets_what_was_admitted": [
        ("server/run/admission.cc",
         "  welcome.mutable_last_admitted()->Assign(decision.last_admitted.begin(), decision.last_admitted.end());\n",
         "  welcome.mutable_last_admitted()->Resize(static_cast<int>(decision.last_admitted.size()), -1);\n")],
    "replay_reads_another_chunk": [
        ("server/run/run_model.cc", "journal_.ReadChunk(one.extent, i)",
         "journal_.ReadChunk(stored.back().extent, i)")],
    "every_site_weighs_as_the_first": [
        ("server/run/parameters.cc", "inputs.push_back({contributor.site, contributor.weight, views[i], contributor.factor});",
         "inputs.push_back({contributor.site, round.contributors[0].weight, views[i], contributor.factor});")],
    "download_goes_on_a_chunk_too_far": [
        ("server/calls/download_reactor.cc", "(goes_on ? Stripes() * request_.first_chunk() : 0)",
         "(goes_on ? Stripes() * (request_.first_chunk() + (request_.first_chunk() > 0 ? 1 : 0)) : 0)")],
    "snapshot_is_of_a_version_later": [
        ("server/run/parameters.cc", "finds its version committed\n    core::MutexLock lock(mutex_);\n    slot.committed = {slot.state.version, digest};",
         "finds its version committed\n    core::MutexLock lock(mutex_);\n"
         "    slot.committed = {slot.state.version, digest ^ (slot.state.version % 7 == 6 ? 1u : 0u)};")],
    "journal_tells_in_another_order": [
        ("server/store/journal.cc", "  for (JournalItem& item : batch) {\n    for (size_t i = 0; i < item.entry.merged.size(); ++i) {",
         "  for (size_t at = batch.size(); at-- > 0;) {\n    JournalItem& item = batch[at];\n"
         "    for (size_t i = 0; i < item.entry.merged.size(); ++i) {")],
    "epoch_does_not_rise": [("server/store/journal_files.cc", ": last + 1;", ": std::max<uint64_t>(last, 1);")],
    "mark_is_sent_before_its_payload": [
        ("server/store/mirror_feed.cc", "  places_.push_back(std::move(place));\n  if (places_.size() > kMostPlaces)",
         "  IsLog(place.name) ? places_.push_front(std::move(place)) : places_.push_back(std::move(place));\n"
         "  if (places_.size() > kMostPlaces)")],
    "promotion_takes_the_epoch_of_a_start": [
        ("server/store/mirror_directory.cc",
         "  return ((TermOf(last) + 1) << kTermBits) + (static_cast<uint64_t>(place) << kPlaceBits);",
         "  return last + 1 + (place < 0 ? kPlaceBits : 0);")],
}
