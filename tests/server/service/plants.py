"""Faults of server/service that its own unit tests have to find: each is a change of the product's text.

A plant is a list of (file, what is there once, what stands there instead), as in tests/sim/plants.py.
"""

PLANTS = {
    "verdict_before_it_is_durable": [
        ("server/service/coordinator_bulk.cc", "  Then([verdict] { verdict(Admitted()); });\n  Publish();\n}",
         "  verdict(Admitted());\n  Publish();\n}")],
    "report_before_it_is_durable": [
        ("server/service/coordinator_shards.cc",
         "  Then([this, report = std::move(report)] {\n    core::MutexLock lock(report_mutex_);\n"
         "    durable_report_ = report;\n  });",
         "  core::MutexLock lock(report_mutex_);\n  durable_report_ = report;")],
    "stripe_is_asked_for_the_chunks_of_another": [
        ("server/service/upload_reactor.cc", "return index % std::max(1, header_.num_stripes()) == header_.stripe();",
         "return (index + 1) % std::max(1, header_.num_stripes()) == header_.stripe();")],
    "verdict_overtakes_the_list_of_chunks": [
        ("server/service/upload_reactor.cc", "    if (!writing_) FinishWithVerdict();", "    FinishWithVerdict();")],
    "repeat_is_refused": [
        ("server/service/coordinator_bulk.cc", "return absl::IsAlreadyExists(status) ? Admitted()",
         "return absl::IsNotFound(status) ? Admitted()")],
    "chunks_of_another_process_are_kept": [
        ("server/service/coordinator.cc", "  if (join.from_checkpoint()) ForgetArriving(site);", "")],
    "download_goes_on_a_chunk_too_far": [
        ("server/service/download_reactor.cc", "(goes_on ? Stripes() * request_.first_chunk() : 0)",
         "(goes_on ? Stripes() * (request_.first_chunk() + (request_.first_chunk() > 0 ? 1 : 0)) : 0)")],
    "weights_are_not_sent": [
        ("server/service/download_reactor.cc", "    if (!request_.wants_weights()) message", "    message")],
    "generation_of_an_upload_is_not_checked": [
        ("server/service/coordinator_bulk.cc", "  RETURN_IF_ERROR(model_.CheckGeneration(GenerationOf(header)));\n", "")],
    "waiters_of_another_model_are_forgotten": [
        ("server/service/waiters.cc", "Waiter::~Waiter() {\n  if (waits_) Tell(", "Waiter::~Waiter() {\n  if (false) Tell("),
        ("server/service/waiters.cc", "void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {\n",
         "void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {\n"
         "  if (absl::IsAborted(status)) return;\n")],
    "older_stream_stays_when_its_site_joins_again": [
        ("server/service/coordinator.cc",
         "  if (member.peer != nullptr && member.peer != peer) member.peer->Close();\n", "")],
    "drain_is_not_repeated_to_who_joins_again": [
        ("server/service/coordinator.cc",
         "  if (rounds_->state().sites.at(site).state == core::SiteState::kDraining) SendDrain(site);", "")],
    "site_that_does_not_read_is_written_to_for_ever": [
        ("server/service/control_reactor.cc", "if (outgoing_.size() > core::kMaxQueuedControlMessages) {",
         "if (outgoing_.empty()) {")],
    "codec_of_a_version_is_not_kept": [
        ("server/service/run_codecs.cc", "  up_[fragment] = codecs.next_up;\n", "")],
    "contributors_are_those_of_another_fragment": [
        ("server/service/coordinator_status.cc", "state.contributions[fragment.id]) status.contributors",
         "state.contributions[0]) status.contributors")],
}
