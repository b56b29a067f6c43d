package format

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// freeSpace returns the bytes of address space that the process may still use, and its
// limit; ok is false if it is unlimited or unknown.
func freeSpace() (free, limit int64, ok bool) {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &r) != nil || r.Cur > 1<<62 {
		return 0, 0, false
	}
	statm, err := os.ReadFile("/proc/self/statm")
	pages, _, _ := strings.Cut(string(statm), " ")
	used, perr := strconv.ParseInt(pages, 10, 64)
	if err != nil || perr != nil {
		return 0, 0, false
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(r.Cur) - used*int64(os.Getpagesize()) + int64(m.HeapIdle), int64(r.Cur), true
}
