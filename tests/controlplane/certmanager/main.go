// Command certmanager runs the controllers of cert-manager that answer a CertificateRequest of a CA issuer, on the
// cluster of a kubeconfig: those of Issuers and ClusterIssuers, the one that approves every request, and the one that
// signs. No webhook, no leader election, nothing of ACME or Vault.
//
//	certmanager --kubeconfig FILE
//
// The custom resource definitions of the same version must be there. It ends with SIGTERM or SIGINT.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	"github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca" // the issuers' controllers find it by its name
)

// As many at once as cert-manager's own default.
const workers = 5

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the cluster, and the rights there")
	clusterResources := flag.String("cluster-resource-namespace", "cert-manager", "where the Secrets of ClusterIssuers are")
	flag.Parse()
	if *kubeconfig == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx, controller.ContextOptions{
		Kubeconfig:    *kubeconfig,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: *clusterResources},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

// run builds all controllers before it starts any, since what they watch begins with the start of the informers.
func run(ctx context.Context, options controller.ContextOptions) error {
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	var built []controller.Interface
	for _, name := range []string{
		issuers.ControllerName, clusterissuers.ControllerName, approver.ControllerName, ca.CRControllerName,
	} {
		one, err := controller.Known()[name](factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		built = append(built, one)
	}
	group, ctx := errgroup.WithContext(ctx)
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	for _, one := range built {
		group.Go(func() error { return one.Run(workers, ctx) })
	}
	return group.Wait()
}
