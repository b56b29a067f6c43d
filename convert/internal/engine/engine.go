// Package engine carries a plan out. Run writes every tensor in tiles under a limit of
// memory, records in a journal what is durable, reads the output again, compares it with
// the source (quantised blocks, which are compared with it when they are encoded, by their
// hash), and writes a manifest. Then the output appears under its final name: the
// target holds a whole checkpoint or no checkpoint. Check compares an output with its manifest.
package engine

import (
	"context"

	"dsmoe/convert/internal/output"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/text/problem"
)

// Run writes the plan's output to the directory dst, an absolute path. A dst that does not
// exist is assembled in a hidden directory beside it and renamed. An existing dst must be
// empty; Run assembles the output in a hidden directory inside it and moves the files out,
// config.json and the index last. With Overwrite, dst may hold a finished output and nothing
// else, and is replaced if it is as its manifest records. An interrupted run leaves the hidden
// directory and a journal; the same call continues from there and gives the same bytes.
//
// If the plan is of one file, dst is the path of that file: the hidden directory lies beside it, and
// the manifest moves out before the file. With Overwrite, dst may be a finished output.
//
// If dst is the finished output of the same plan, Run checks it against its manifest. It
// also compares it with the source if the source may have changed since, or if the output
// is to be verified and was not. StartOver makes and replaces it in any case.
//
// With Part, Run writes and proves that part of the output in the hidden directory, whatever other runs write
// of it at the same time, and leaves a journal. With Finish it publishes the output that all parts have written.
func Run(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	s = s.withDefaults()
	if remote.Is(dst) && (s.Part.N > 0 || s.Finish) {
		return nil, problem.New(dst, "an object store takes an output of one run only",
			"write parts to a file system that all of them share")
	}
	t, err := output.TargetOf(dst, p, s.Client)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Part.N > 0:
		return runPart(ctx, t, p, src, s)
	case s.Finish:
		return finishParts(ctx, t, p, src, s)
	}
	if !t.InStore() {
		if err := output.RefuseParts(t, p, output.Options{Overwrite: s.Overwrite}); err != nil {
			return nil, err
		}
	}
	return run(ctx, t, p, src, s)
}
