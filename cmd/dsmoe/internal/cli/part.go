package cli

// --part: which share of the work a run does, given in words or by the array job that it is a task of.

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Part is part index of a number of parts, from 1 on. Its zero value is the whole.
type Part struct{ Index, Of int }

// autoPart stands for the part that the environment names.
const autoPart = "auto"

// parsePart reads I/N, or auto, which is a part of -1.
func parsePart(word string) (Part, error) {
	if word == autoPart {
		return Part{Of: -1}, nil
	}
	i, n, ok := strings.Cut(word, "/")
	index, errI := parseNumber[int](i)
	of, errN := parseNumber[int](n)
	if !ok || errI != nil || errN != nil || index < 1 || index > of {
		return Part{}, errors.New("not I/N with 1 ≤ I ≤ N, such as 3/16, nor auto")
	}
	return Part{index, of}, nil
}

// String returns what parsePart reads, and nothing for the whole.
func (p Part) String() string {
	switch {
	case p.Of < 0:
		return autoPart
	case p.Of == 0:
		return ""
	}
	return fmt.Sprintf("%d/%d", p.Index, p.Of)
}

// PartFlags are --part and --parts.
type PartFlags struct {
	part  Part
	parts int // of --part auto, where the environment does not say it; 0 if not given
}

// AddPart adds --part and --parts to a command; what names the share that a part is.
func AddPart(cmd *cobra.Command, what string) *PartFlags {
	p := &PartFlags{}
	cmd.Flags().Var(Value[Part]{&p.part, "I/N", parsePart, Part.String, []string{autoPart}}, "part",
		what+"; auto takes I/N from Slurm's or Kubernetes' array")
	NumberFlag(cmd.Flags(), &p.parts, "parts", "", "with --part auto on Kubernetes: the `number` of completions, N")
	InGroup(cmd.Flags(), Parts, "part", "parts")
	return p
}

// Read returns the part that the flags, and with auto the environment, name.
func (p *PartFlags) Read(cmd *cobra.Command) (Part, error) {
	switch given := cmd.Flags().Changed("parts"); {
	case given && (p.part.Of >= 0 || p.parts == 0):
		return Part{}, Misuse(cmd, "--parts is the number of parts of --part auto, at least 1")
	case p.part.Of >= 0:
		return p.part, nil
	}
	found, err := arrayPart(p.parts, os.Getenv)
	if err != nil {
		return Part{}, Misuse(cmd, "--part auto: "+err.Error())
	}
	return found, nil
}

// arrayPart returns the part that a task of Slurm's array is, or a pod of Kubernetes' Indexed Job: the completions
// 0, 1, … are parts 1 to parts. parts is the number of parts, 0 if only the environment says it.
func arrayPart(parts int, env func(string) string) (Part, error) {
	slurm, index := env("SLURM_ARRAY_TASK_ID") != "", env("JOB_COMPLETION_INDEX")
	i, err := parseNumber[int](index)
	switch {
	case slurm && index != "":
		return Part{}, errors.New("SLURM_ARRAY_TASK_ID and JOB_COMPLETION_INDEX are both set; give --part I/N")
	case slurm:
		return slurmPart(parts, env)
	case index == "":
		return Part{}, errors.New("neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set; give --part I/N")
	case err != nil:
		return Part{}, fmt.Errorf("JOB_COMPLETION_INDEX=%q: %w", index, err)
	case parts == 0:
		return Part{}, errors.New("JOB_COMPLETION_INDEX does not say of how many; give --parts N, the Job's completions")
	case i >= parts:
		return Part{}, fmt.Errorf("JOB_COMPLETION_INDEX=%d, but --parts %d has the indices 0-%d", i, parts, parts-1)
	}
	return Part{i + 1, parts}, nil
}

// slurmPart returns the part that a task of Slurm's array is: the tasks MIN, MIN + STEP, … MAX are parts 1 to COUNT.
func slurmPart(parts int, env func(string) string) (Part, error) {
	var bad []string
	number := func(name, otherwise string) int {
		name = "SLURM_ARRAY_TASK_" + name
		word := cmp.Or(env(name), otherwise)
		n, err := parseNumber[int](word)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s=%q", name, word))
		}
		return n
	}
	id, first, count := number("ID", ""), number("MIN", ""), number("COUNT", "")
	step, last := number("STEP", "1"), number("MAX", fmt.Sprint(id))
	switch {
	case bad != nil:
		return Part{}, fmt.Errorf("%s: not whole numbers", strings.Join(bad, ", "))
	case parts > 0 && parts != count:
		return Part{}, fmt.Errorf("--parts %d, but Slurm's array has %d tasks; give --part I/N", parts, count)
	case step < 1, id < first, id > last, (id-first)%step != 0, (id-first)/step >= count,
		env("SLURM_ARRAY_TASK_MAX") != "" && (last-first)/step != count-1:
		return Part{}, fmt.Errorf("task %d of Slurm's array of %d tasks from %d to %d in steps of %d: not an array "+
			"without gaps; give --part I/N", id, count, first, last, step)
	}
	return Part{(id-first)/step + 1, count}, nil
}
