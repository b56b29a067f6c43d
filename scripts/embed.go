// Package scripts embeds the recorder of golden packs, which `dsmoe golden` runs.
package scripts

import _ "embed"

// Recorder is golden.py: it runs the reference Python on a checkpoint and writes a golden pack.
//
//go:embed golden.py
var Recorder []byte
