// Package scripts embeds the Python that dsmoe prints or runs: the recorders of golden packs and of engines' traces.
package scripts

import (
	"embed"
	"slices"
)

// Recorder is golden.py: it runs the reference Python on a checkpoint and writes a golden pack.
//
//go:embed golden.py
var Recorder []byte

//go:embed trace/*.py
var traces embed.FS

// Engines are the kinds of engines that TraceRecorder has a recorder for.
var Engines = []string{"llama", "mlx", "torch"}

// TraceRecorder is trace.py for one of Engines: it writes what the engine computes as a pack. The file consists of
// the engine's part and of what all recorders share.
func TraceRecorder(engine string) ([]byte, error) {
	own, err := traces.ReadFile("trace/" + engine + ".py")
	if err != nil {
		return nil, err
	}
	shared, err := traces.ReadFile("trace/common.py")
	return slices.Concat(own, shared), err
}
