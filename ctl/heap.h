// The heap of a program through which large payloads pass. Call SetUpHeap first in main.
//
// By default glibc maps each chunk on its own, gives it back when it is freed, and faults every byte of the next one in
// again, which costs more than the chunk's way through gRPC; and each of gRPC's threads has its own arena, so that no
// other thread reuses memory that one has freed. Here chunks share one arena, which stays; arrays of parameters are
// mapped.
#pragma once

namespace causeway::ctl {

void SetUpHeap();

}  // namespace causeway::ctl
