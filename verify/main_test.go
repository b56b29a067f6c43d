package verify

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain collects garbage less often than a user's dsmoe: the models of the tests are small.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
