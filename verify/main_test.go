package verify

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"
)

// Every is set by scripts/check.sh.
var Every = flag.Bool("every", false, "try everything, not a selection")

// TestMain collects garbage less often than a user's dsmoe: the models of the tests are small.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
