package remote

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/stretchr/testify/require"
)

// TestEndpoints: which server has a bucket. Settings that say so make the settings of endpoints void.
func TestEndpoints(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(file, []byte("[default]\n[profile void]\nignore_configured_endpoint_urls = true\n"), 0o600))
	for name, value := range map[string]string{"AWS_CONFIG_FILE": file, "AWS_SHARED_CREDENTIALS_FILE": file, "AWS_CA_BUNDLE": "",
		"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "AWS_PROFILE": ""} {
		t.Setenv(name, value)
	}
	for _, c := range []struct{ name, region, want string }{
		{"models", "eu-west-1", "https://models.s3.eu-west-1.amazonaws.com"},
		{"my.models", "eu-west-1", "https://s3.eu-west-1.amazonaws.com/my.models"},
		{"models", "cn-north-1", "https://models.s3.cn-north-1.amazonaws.com.cn"},
	} {
		requirePlace(t, c.want, c.name, c.region)
	}
	t.Setenv("AWS_ENDPOINT_URL", "https://all")
	requirePlace(t, "https://all/models", "models", "r")
	t.Setenv("AWS_ENDPOINT_URL_S3", "https://s3/base/")
	requirePlace(t, "https://s3/base/models", "models", "r")
	t.Setenv("AWS_PROFILE", "void")
	requirePlace(t, "https://models.s3.r.amazonaws.com", "models", "r")
}

func requirePlace(t *testing.T, want, name, region string) {
	t.Helper()
	settings, err := config.LoadDefaultConfig(t.Context())
	require.NoError(t, err)
	u, err := (&bucket{name: name, region: region}).place(endpointOf(settings))
	require.NoError(t, err)
	require.Equal(t, want, u.String())
}
