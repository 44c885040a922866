"""Faults of server/run and server/calls that their unit tests have to find: each is a change of the product's text.

A plant is a list of (file, what is there once, what stands there instead), as in tests/sim/plants.py.
"""

PLANTS = {
    "verdict_before_it_is_durable": [
        ("server/run/uploads.cc", "  run.ready.effects.emplace_back(\n      effect::Answer{input.peer, header.context().site(), header.fragment(), std::move(verdict)});\n",
         "  input.peer->Answer(std::move(verdict));\n")],
    "report_before_it_is_durable": [
        ("server/run/shards.cc",
         "  if (run.durable.report.Note(report)) run.ready.effects.emplace_back(effect::Durable{report});",
         "  if (run.durable.report.Note(report)) run.ready.state_changed = true, run.durable.report.MakeDurable(report);")],
    "stripe_is_asked_for_the_chunks_of_another": [
        ("server/calls/upload_reactor.cc", "return index % std::max(1, header_.num_stripes()) == header_.stripe();",
         "return (index + 1) % std::max(1, header_.num_stripes()) == header_.stripe();")],
    "verdict_overtakes_the_list_of_chunks": [
        ("server/calls/upload_reactor.cc", "    if (!writing_) FinishWith(verdict_);\n  }", "    FinishWith(verdict_);\n  }")],
    "repeat_is_refused": [
        ("server/run/uploads.cc", "return absl::IsAlreadyExists(status) ? AdmittedVerdict()",
         "return absl::IsNotFound(status) ? AdmittedVerdict()")],
    "chunks_of_another_process_are_kept": [
        ("server/run/admission.cc", "  if (join.from_checkpoint()) ForgetUploads(run, site);", "")],
    "download_goes_on_a_chunk_too_far": [
        ("server/calls/download_reactor.cc", "(goes_on ? Stripes() * request_.first_chunk() : 0)",
         "(goes_on ? Stripes() * (request_.first_chunk() + (request_.first_chunk() > 0 ? 1 : 0)) : 0)")],
    "weights_are_not_sent": [
        ("server/calls/download_reactor.cc", "    if (!request_.wants_weights()) message", "    message")],
    "generation_of_an_upload_is_not_checked": [
        ("server/run/uploads.cc", "  RETURN_IF_ERROR(run.model.fact().CheckGeneration(GenerationOf(header)));\n  if (header.initial()) {",
         "  if (header.initial()) {")],
    "waiters_of_another_model_are_forgotten": [
        ("server/run/chunk_source.cc", "Waiter::~Waiter() {\n  if (waits_) Tell(", "Waiter::~Waiter() {\n  if (false) Tell("),
        ("server/run/chunk_source.cc", "void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {\n",
         "void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {\n"
         "  if (absl::IsAborted(status)) return;\n")],
    "older_stream_stays_when_its_site_joins_again": [
        ("server/run/members.cc", "  if (earlier != nullptr && earlier != peer) ready.effects.emplace_back(effect::Close{std::move(earlier), site});\n", "")],
    "drain_is_not_repeated_to_who_joins_again": [
        ("server/run/admission.cc", "  if (drains) run.members.Send(site, DrainMessage(), run.ready);", "  (void)drains;")],
    "site_that_does_not_read_is_written_to_for_ever": [
        ("server/calls/control_reactor.cc", "if (outgoing_.size() > core::kMaxQueuedControlMessages) {",
         "if (outgoing_.empty()) {")],
    "codec_of_a_version_is_not_kept": [
        ("server/run/run_model.cc", "  up_[fragment] = codecs.next_up;\n", "")],
    "contributors_are_those_of_another_fragment": [
        ("server/run/run_figures.cc", "state.contributions[fragment.id]) status.contributors",
         "state.contributions[0]) status.contributors")],
}
