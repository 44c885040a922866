"""Faults of transport/ that its own tests have to notice: each is a change of the product's text, made in a copy.

A plant is a list of (file, what is there once, what stands there instead), as in tests/sim/plants.py.
"""

PLANTS = {
    "chunk_sent_again_after_a_cut": [
        ("transport/transfer.cc", "    header.set_sends_all(std::exchange(first_attempt_, false));",
         "    header.set_sends_all(first_attempt_);")],
    "completion_told_twice": [
        ("transport/grpc_link.cc", '  if (!finished) transfer->Finish(absl::CancelledError("the transfer was dropped"));',
         '  transfer->Finish(absl::CancelledError("the transfer was dropped"));')],
    "retry_of_a_transfer_is_lost": [
        ("transport/transfer_queue.cc", "  pending->running = false;\n", "")],
    "upload_begins_before_the_last_is_written": [
        ("transport/transfer_queue.cc", "if (other.writing || (earlier && !other.running && other.transfer->is_upload())) return false;",
         "if (earlier && !other.running && other.transfer->is_upload()) return false;")],
    "stream_is_resumed_one_chunk_too_late": [
        ("transport/transfer.cc", "      request.set_first_chunk(held[i]);",
         "      request.set_first_chunk(held[i] > 0 ? held[i] + 1 : 0);")],
    "pacer_saves_up_idle_time": [
        ("transport/link_meter.h", "std::max(now_us * 1000, free_at_ns_)",
         "std::max(now_us * 1000 - int64_t{10'000'000'000}, free_at_ns_)")],
    "generation_is_not_sent": [
        ("transport/transfer.cc", "    if (generation) header.set_generation(*generation);\n", "    (void)generation;\n")],
    "transfers_are_kept_on_another_lineage": [
        ("transport/control_session.cc", "(welcome.resumed() || (joining_ && same_lineage))",
         "(welcome.resumed() || joining_)")],
    "dropped_transfer_is_launched_again": [
        ("transport/transfer_queue.cc", "  return !pending->dropped;", "  return true;")],
    "backoff_does_not_grow": [
        ("transport/control_session.cc", "  attempts_ = welcomed() ? 1 : attempts_ + 1;", "  attempts_ = 1;")],
    "cancelled_stream_waits_for_its_turn": [
        ("transport/bulk_streams.cc", "    if (!cancelled_) {\n", "    {\n")],
}
