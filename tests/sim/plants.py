"""Faults that the simulator has to find: each is a change of the product's text, made in a copy of the tree.

A plant is a list of (file, what is there once, what stands there instead).
"""

PLANTS = {
    "verdict_before_it_is_durable": [
        ("server/service/coordinator_bulk.cc", "  Then([verdict] { verdict(Admitted()); });\n  Publish();\n}",
         "  verdict(Admitted());\n  Publish();\n}")],
    "merge_before_it_is_durable": [
        ("server/service/coordinator_actions.cc",
         "  Then([this, job = std::make_shared<MergeJob>(std::move(job))] { parameters_->Merge(std::move(*job)); });",
         "  parameters_->Merge(std::move(job));")],
    "waiters_of_another_model_are_forgotten": [  # joining hung for ever
        ("server/service/waiters.cc", "Waiter::~Waiter() {\n  if (waits_) Tell(", "Waiter::~Waiter() {\n  if (false) Tell("),
        ("server/service/waiters.cc", "void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {\n",
         "void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {\n"
         "  if (absl::IsAborted(status)) return;\n")],
    "no_waiting_reader_is_woken": [
        ("server/service/waiters.cc", "  TellTaken(std::move(taken), absl::OkStatus());\n}", "}"),
        ("server/service/waiters.cc",
         "  TellTaken(Take([fragment](const WaitKey& key) { return key.fragment == fragment; }), absl::OkStatus());", "")],
    "contribution_merged_twice_after_a_restart": [
        ("server/store/load.cc", "AND merged_version IS NULL ORDER BY site, base",
         "AND (merged_version IS NULL OR merged_version = (SELECT max(merged_version) FROM contributions)) "
         "ORDER BY site, base")],
    "contribution_stays_in_the_next_round": [
        ("server/rounds/round_table_rounds.cc", "  contributors.clear();\n  open_[fragment] = {};", "  open_[fragment] = {};"),
        ("server/service/coordinator_actions.cc", "    open.erase(contributor.site);\n", "")],
    "residual_applied_twice": [
        ("codecs/error_feedback.cc", "  residual_ = std::move(next_residual_);\n  pending_ = false;",
         "  residual_ = std::move(next_residual_);\n  for (float& value : residual_.values()) value += value;\n  pending_ = false;")],
    "update_of_another_generation_is_taken": [
        ("transport/transfer.cc", "if (generation_ && header.generation && *header.generation != *generation_) return true;", ""),
        ("server/rounds/model_fact.cc", "absl::Status ModelFact::CheckGeneration(std::optional<uint64_t> named) const {\n",
         "absl::Status ModelFact::CheckGeneration(std::optional<uint64_t> named) const {\n"
         "  if (named.has_value() || !named.has_value()) return absl::OkStatus();\n")],
    "shard_admits_before_shard_0_says_so": [
        ("server/rounds/round_table_rounds.cc", "  if (!core::IsActive(record.state)) {", "  if (!core::IsActive(record.state) && !follows()) {")],
    "segments_are_not_synced": [
        ("server/store/segments.cc",
         '    if (::fdatasync(appending.file.get()) != 0) {\n'
         '      return formats::FileError("sync", SegmentPath(directory_, appending.segment));\n    }\n'
         "    appending.dirty = false;", "    appending.dirty = false;")],
    "files_are_not_synced": [
        ("formats/atomic_file.cc", "  if (::fsync(file_.get()) != 0) return FileError(\"sync\", path_);\n", "")],
    "write_ahead_log_is_not_synced": [
        ("server/store/schema.cc", "PRAGMA synchronous = FULL;", "PRAGMA synchronous = OFF;")],
    "retry_of_a_transfer_is_lost": [
        ("transport/grpc_link_transfers.cc", "      pending.running = false;\n", "")],
    "step_thread_is_not_woken": [
        ("worker/site/site_exchange.cc", "  changed_.NotifyAll();\n", "")],
    "welcome_forgets_what_was_admitted": [
        ("server/service/coordinator.cc",
         "  welcome->mutable_last_admitted()->Assign(decision.last_admitted.begin(), decision.last_admitted.end());\n",
         "  welcome->mutable_last_admitted()->Resize(static_cast<int>(decision.last_admitted.size()), -1);\n")],
    "replay_reads_another_chunk": [
        ("server/service/coordinator_state.cc", "journal_->ReadChunk(one.extent, i)",
         "journal_->ReadChunk(stored.back().extent, i)")],
    "every_site_weighs_as_the_first": [
        ("server/service/parameters.cc", "inputs.push_back({round.contributors[i].site, round.contributors[i].weight, views[i]});",
         "inputs.push_back({round.contributors[i].site, round.contributors[0].weight, views[i]});")],
    "download_goes_on_a_chunk_too_far": [
        ("server/service/download_reactor.cc", "(goes_on ? Stripes() * request_.first_chunk() : 0)",
         "(goes_on ? Stripes() * (request_.first_chunk() + (request_.first_chunk() > 0 ? 1 : 0)) : 0)")],
    "verdict_of_an_earlier_stay_counts": [
        ("worker/site/fragment_rules.cc", "given.tag == Tag{stay, id_, send_ticket_}", "(given.tag.fragment == id_ || stay < 0)")],
    "snapshot_is_of_a_version_later": [
        ("server/service/parameters.cc", "    slot.committed = {slot.state.version, digest};",
         "    slot.committed = {slot.state.version, digest ^ (slot.state.version % 7 == 6 ? 1u : 0u)};")],
    "journal_tells_in_another_order": [
        ("server/store/journal.cc", "  for (Item& item : batch) {\n    for (size_t i = 0; i < item.entry.merged.size(); ++i) {",
         "  for (size_t at = batch.size(); at-- > 0;) {\n    Item& item = batch[at];\n"
         "    for (size_t i = 0; i < item.entry.merged.size(); ++i) {")],
    "epoch_does_not_rise": [("server/store/schema.cc", "CAST(value AS INTEGER) + 1", "CAST(value AS INTEGER)")],
}
