package verify

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"
)

// Every is set by scripts/check.sh.
var Every = flag.Bool("every", false, "try everything, not a selection")

// Temp is a folder for the whole run.
var Temp string

// TestMain collects garbage less often than a user's dsmoe: the models of the tests are small.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	var err error
	if Temp, err = os.MkdirTemp("", "verify"); err != nil {
		panic(err)
	}
	status := m.Run()
	os.RemoveAll(Temp)
	os.Exit(status)
}
