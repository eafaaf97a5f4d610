#!/bin/bash
# How each container of the image starts. On Kubernetes Spark asks for `driver` and `executor`; all else is a command.
set -euo pipefail
shopt -s nullglob

# Kubernetes lets the pod's group read a mounted secret; Tidemark reads files that their owner alone can read.
# The containers of a pod share that folder and start at once: each file appears whole, in one step.
for file in /run/secrets/tidemark/*; do
    own=$(mktemp /run/tidemark/.XXXXXXXX)
    cat "$file" >"$own"
    mv -f "$own" "/run/tidemark/$(basename "$file")"
done
# A bucket's credentials are AWS_… variables, of this process and not of the pod.
for file in /run/secrets/bucket/*; do
    export "$(basename "$file")=$(<"$file")"
done

case "${1:-}" in
driver)
    shift
    exec spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
executor)
    options=()
    while IFS= read -r name; do
        options+=("${!name}")
    done < <(compgen -e SPARK_JAVA_OPT_ | sort -t_ -k4 -n)
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-}:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
