package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestPart reads --part, --parts and the environments of arrays.
func TestPart(t *testing.T) {
	const slurm = "SLURM_ARRAY_TASK_"
	array := func(id, first, last, count, step string) []string {
		return []string{slurm + "ID=" + id, slurm + "MIN=" + first, slurm + "MAX=" + last, slurm + "COUNT=" + count,
			slurm + "STEP=" + step}
	}
	for _, c := range []struct {
		flags string
		env   []string
		want  Part
		cause string // if it is refused
	}{
		{"", nil, Part{}, ""},
		{"", array("3", "0", "7", "8", "1"), Part{}, ""}, // not asked
		{"--part 1/1", nil, Part{1, 1}, ""},
		{"--part 16/16", array("3", "0", "7", "8", "1"), Part{16, 16}, ""},
		{"--part 0/4", nil, Part{}, `invalid argument "0/4" for "--part" flag: not I/N with 1 ≤ I ≤ N`},
		{"--part 5/4", nil, Part{}, "1 ≤ I ≤ N"},
		{"--part -1/4", nil, Part{}, "1 ≤ I ≤ N"},
		{"--part 3", nil, Part{}, "not I/N"},
		{"--part 1/2/3", nil, Part{}, "not I/N"},
		{"--part 1/99999999999999999999", nil, Part{}, "not I/N"},
		{"--part ", nil, Part{}, "not I/N"},
		{"--part 1/4 --parts 4", nil, Part{}, "--parts is the number of parts of --part auto"},
		{"--parts 4", nil, Part{}, "--parts is the number of parts of --part auto"},
		{"--part auto --parts 0", nil, Part{}, "at least 1"},
		{"--part auto", nil, Part{}, "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set"},
		{"--part auto", array("0", "0", "7", "8", "1"), Part{1, 8}, ""},
		{"--part auto", array("8", "1", "8", "8", "1"), Part{8, 8}, ""},
		{"--part auto", array("30", "0", "30", "16", "2"), Part{16, 16}, ""},
		{"--part auto", array("4", "0", "31", "16", "2"), Part{3, 16}, ""}, // as --array=0-31:2 may be told
		{"--part auto", array("105", "101", "109", "5", "2"), Part{3, 5}, ""},
		{"--part auto", []string{slurm + "ID=3", slurm + "MIN=2", slurm + "COUNT=4"}, Part{2, 4}, ""},
		{"--part auto --parts 8", array("3", "0", "7", "8", "1"), Part{4, 8}, ""},
		{"--part auto --parts 8", array("3", "3", "3", "1", "1"), Part{}, "--parts 8, but Slurm's array has 1 tasks"},
		{"--part auto", array("3", "1", "7", "3", "1"), Part{}, "not an array without gaps"}, // --array=1,3,7
		{"--part auto", array("2", "1", "5", "3", "1"), Part{}, "not an array without gaps"}, // --array=1,2,5
		{"--part auto", array("3", "0", "30", "16", "2"), Part{}, "not an array without gaps"},
		{"--part auto", array("3", "0", "7", "8", "0"), Part{}, "not an array without gaps"},
		{"--part auto", array("9", "0", "7", "8", "1"), Part{}, "not an array without gaps"},
		{"--part auto", array("1", "2", "7", "6", "1"), Part{}, "not an array without gaps"},
		{"--part auto", []string{slurm + "ID=x", slurm + "COUNT=4"}, Part{},
			`SLURM_ARRAY_TASK_ID="x", SLURM_ARRAY_TASK_MIN="": not whole numbers`},
		{"--part auto", []string{"JOB_COMPLETION_INDEX=0"}, Part{}, "give --parts N, the Job's completions"},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=0"}, Part{1, 4}, ""},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=3"}, Part{4, 4}, ""},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=4"}, Part{}, "--parts 4 has the indices 0-3"},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=-1"}, Part{}, "not a whole number"},
		{"--part auto --parts 4", append(array("0", "0", "3", "4", "1"), "JOB_COMPLETION_INDEX=0"), Part{}, "both set"},
	} {
		t.Run(strings.Join(append(c.env, c.flags), " "), func(t *testing.T) {
			for _, setting := range append(array("", "", "", "", ""), "JOB_COMPLETION_INDEX=") {
				t.Setenv(strings.TrimSuffix(setting, "="), "")
			}
			for _, setting := range c.env {
				name, word, _ := strings.Cut(setting, "=")
				t.Setenv(name, word)
			}
			var got Part
			cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true}
			flags := AddPart(cmd, "one of N parts")
			cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
				got, err = flags.Read(cmd)
				return err
			}
			cmd.SetArgs(nil)
			if c.flags != "" {
				cmd.SetArgs(strings.Split(c.flags, " "))
			}
			err := cmd.Execute()
			if c.cause == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.cause)
			}
			require.Equal(t, c.want, got)
		})
	}
}
