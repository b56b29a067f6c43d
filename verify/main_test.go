package verify

import (
	"os"
	"runtime/debug"
	"testing"
)

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
